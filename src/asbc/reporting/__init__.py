"""What people look at: figures, tables and the HTML report."""
