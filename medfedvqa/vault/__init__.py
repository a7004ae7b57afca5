"""A site's process without network: it holds rows, models, log, keys and ledger, and answers over one Unix socket."""
