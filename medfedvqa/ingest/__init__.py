"""From a hospital's folder of images to a store without identities. Imported by worker processes: keep it light."""
