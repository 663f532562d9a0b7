"""What to look at: sources of pictures, opening them safely, spoiling them on purpose."""
