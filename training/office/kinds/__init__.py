"""One kind of document a file; `training.office.registry` imports them all."""
