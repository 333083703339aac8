"""One run against another, cell by cell, so that a change may go in or not."""
