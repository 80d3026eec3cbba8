"""Reports: many results read together, figures, and one page of HTML."""
