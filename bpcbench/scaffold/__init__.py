"""New packages for authors of plugins, written from templates."""
