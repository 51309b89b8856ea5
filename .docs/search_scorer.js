// How pages are ranked that match a search: concepts first, the glossary after them, pages of single studies last.
// The numbers but for `score` are those of Sphinx, which declares it again: hence `var`.
var Scorer = {
  score: ([docname, , , , score]) => score + (docname === "concepts/glossary" ? 10 : docname.startsWith("concepts/") ? 15 : docname.startsWith("generated/specialists") ? -10 : 0),
  objNameMatch: 18, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
