"""The pages of the console, a module each: what is asked of the node, what a template gets."""
