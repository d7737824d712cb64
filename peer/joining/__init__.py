"""From a ticket to a trainer that is ready."""
