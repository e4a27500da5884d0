"""The picture pack that synthetic pairs are drawn from: its sources, their licences and the zip file."""
