"""The tests; a package of its own, as a library used by some of them installs one of the same name."""
