"""Planning aids: what a method needs from links and machines, by arithmetic alone. Nothing is started or measured."""
