// Additions to Sphinx's search, which leaves numbers out of a query, ranks pages with the same words by the alphabet, and
// shows no excerpts of pages opened as files.
if (typeof Search !== "undefined") {
  const parseQuery = Search._parseQuery;
  Search._parseQuery = (query) => {
    const parsed = parseQuery(query);
    const [, searchTerms, , highlightTerms] = parsed;
    for (const term of splitQuery(query.trim()).filter((term) => /^\d+$/.test(term))) {
      searchTerms.add(term);
      highlightTerms.add(term);
    }
    localStorage.setItem("sphinx_highlight_terms", [...highlightTerms].join(" "));
    return parsed;
  };

  // Of the entries of the index, the definition of a term comes after the page about it.
  Scorer.score = ([page, , , , score]) => (page === "reference/glossary" ? score / 2 : score);

  // A page whose title has all words comes before its parts and options, then pages by their headings that have all words.
  const performTermsSearch = Search.performTermsSearch;
  Search.performTermsSearch = (searchTerms, excludedTerms) => {
    const stemmer = new Stemmer();
    const hasAll = (text) => {
      const stems = new Set(splitQuery(text.toLowerCase()).map((word) => stemmer.stemWord(word)));
      return [...searchTerms].every((term) => stems.has(term));
    };
    const { alltitles, docnames } = Search._index;
    const headings = Object.entries(alltitles).filter(([heading]) => hasAll(heading)).flatMap(([, places]) => places);
    return performTermsSearch(searchTerms, excludedTerms).map(([page, title, anchor, description, , ...rest]) => {
      const found = headings.filter(([file]) => docnames[file] === page).length;
      const score = (hasAll(title) ? Scorer.title : 0) + (page === "reference/changelog" ? 0 : Scorer.term + found);
      return [page, title, anchor, description, score, ...rest];
    });
  };

  // An index entry and a term have no text of their own, and a page that is a file has no anchors: the excerpt is from the
  // whole page.
  const htmlToText = Search.htmlToText;
  Search.htmlToText = (html, anchor) =>
    htmlToText(html, location.protocol === "file:" || /^#(index|term)-/.test(anchor) ? "" : anchor);

  // A browser fetches no file for a page that is a file itself; a script it does load. conf.py writes this one.
  if (location.protocol === "file:") {
    const root = document.documentElement.dataset.content_root;
    const loaded = new Promise((resolve) => {
      const script = document.createElement("script");
      script.src = `${root}_static/page-texts.js`;
      script.onload = resolve;
      document.head.append(script);
    });
    window.fetch = async (url) => {
      await loaded;
      const main = document.createElement("div");
      main.setAttribute("role", "main");
      main.textContent = pageTexts[url.slice(root.length).replace(/\.html$/, "")] ?? "";
      return { text: async () => main.outerHTML };
    };
  }
}
