"""What a run did, as pages to look at: each module writes one kind, from files in the workdir."""
