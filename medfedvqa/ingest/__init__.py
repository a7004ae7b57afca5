"""Turns a hospital's folder of images into a store without identities. Worker processes import it: keep it light."""
