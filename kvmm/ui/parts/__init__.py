"""HTML and components that the tabs are made of."""
