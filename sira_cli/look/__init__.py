"""The second look at texts: does the picture support the objects they name; texts decoded after it."""
