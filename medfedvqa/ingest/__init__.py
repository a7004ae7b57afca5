"""From a hospital's DICOM folder to a store without identities. Imported by worker processes: keep it light."""
