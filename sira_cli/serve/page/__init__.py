"""The page at `/`: a picture and a prompt in, two texts side by side out. It uses the server as any client does."""
