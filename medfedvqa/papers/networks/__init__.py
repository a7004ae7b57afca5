"""The papers' networks: those that read picture and question together, trunks, and the parts of split learning."""
