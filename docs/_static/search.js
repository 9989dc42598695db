// Additions to Sphinx's search, which leaves numbers out of a query and shows no excerpts of pages opened as files.
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
