"""Where stores may be, and how they are opened: folders, running nodes, object stores."""
