"""The page kit for apps; its public names are those of `boathook_pages`. It does not know the console."""
