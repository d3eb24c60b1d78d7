"""Every released checkpoint on every data set, and the pages."""
