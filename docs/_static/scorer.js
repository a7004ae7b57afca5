// How the site's search ranks what it finds: a question that is typed as it stands, guides, the reference.
var Scorer = {
  score: ([page, title, anchor, description, score, file, kind]) => {
    const reference = page.startsWith("api/") || kind === "object" || kind === "index";
    const answers = page === "faq" ? (kind === "title" ? 1000 : 5) : 0;
    return score + answers + (reference ? -1000 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
