"""The page kit for apps; its public names are those of `boathook.pages`. It does not know the console."""
