"""The papers: every figure and table of Voita 2019, Michel 2019 and Budhraja 2020, a short function each."""
