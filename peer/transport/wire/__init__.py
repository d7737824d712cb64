"""What both ends of a call share."""
