"""Run folders become a report's data: read strictly, put into cells, summed up."""
