package console

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/PuerkitoBio/goquery"
	"github.com/stretchr/testify/require"
)

// hostile is content that tries to become part of the page, or to read as something else.
var hostile = []string{
	`<script>alert(1)</script>`, `"><svg onload=alert(1)>`, `<img src="https://evil.example/pixel.gif">`, `<a href="https://evil.example">click</a>`,
	`'"></textarea></pre><form action=https://evil.example>`, `</bdi></dd></dl></main><h1>Approved</h1>`, `{{.Nonce}} ${7*7}`, `javascript:alert(1)`,
	`<style>.answers{display:none}</style>`, `<button name=decision value=approve>ok</button>`, `<meta http-equiv=refresh content=0;url=https://evil.example>`,
}

func TestHostileContentStaysText(t *testing.T) {
	d := newDesk(t, origin)
	reply := strings.Join(hostile, "\n") + "\npay \u202e001\u202c to p\u200baypal at \u0430pple.com"
	ap := d.ask("ticket-reply", `T-1"><script>alert(2)</script>`, reply, map[string]any{
		"subject": hostile[0], "source_url": "https://bank.example@evil.example/x"})
	ana := d.signedIn("ana")
	for _, path := range []string{"/console/approvals/" + ap.ID, "/console/runs/" + ap.RunID, "/console", "/console/runs", "/console/runs?key=" + url.QueryEscape(hostile[1])} {
		page := ana.get(path)
		require.Equal(t, http.StatusOK, page.Code, path)
		require.Zero(t, page.Find("script, img, iframe, object, style, meta[http-equiv], [onload], [onerror]").Length(), path)
		for _, hidden := range []string{"\u202e", "\u202c", "\u200b"} {
			require.NotContains(t, page.html, hidden, path)
		}
		page.Find("a[href], form[action]").Each(func(_ int, s *goquery.Selection) {
			address := s.AttrOr("href", s.AttrOr("action", ""))
			require.True(t, strings.HasPrefix(address, "/") || strings.HasPrefix(address, "#"), "%s: a live link to %s", path, address)
		})
	}
	card := ana.get("/console/approvals/" + ap.ID)
	require.Equal(t, 3, card.Find("button[name=decision]").Length(), "the answers are ours alone")
	effects := text(card.Find("[data-part=effects]"))
	for _, x := range hostile {
		require.Contains(t, effects, strings.Join(strings.Fields(x), " "), "the content is shown in full")
	}
	for _, mark := range []string{"direction control U+202E", "direction control U+202C", "invisible character U+200B", "the real domain is xn--pple-43d.com", "Careful: 4 places"} {
		require.Contains(t, effects, mark)
	}
	people := text(card.Find("[data-part=people]"))
	require.Contains(t, people, "https://bank.example@evil.example/x")
	require.Contains(t, people, "not a link")

	german := ana.do(http.MethodGet, "/console/approvals/"+ap.ID, nil, func(r *http.Request) { r.Header.Set("Accept-Language", "de") })
	require.Contains(t, text(german.Find("[data-part=effects]")), "Richtungszeichen U+202E")

	// A reason is content as well.
	path := "/console/approvals/" + ap.ID
	require.Equal(t, http.StatusSeeOther, ana.submit(card, path, map[string]string{"decision": "reject", "reason": hostile[1] + "\u202e"}).Code)
	receipt := ana.get(path)
	require.Zero(t, receipt.Find("main svg").Length())
	require.Contains(t, text(receipt.Find("[data-part=decision]")), hostile[1]+" direction control U+202E")
	require.NotContains(t, d.logged.String(), "alert")
}

func TestLongContentIsShownWholeOrCannotBeApproved(t *testing.T) {
	d := newDesk(t, origin)
	ana := d.signedIn("ana")
	long := strings.Repeat("A line of a long letter.\n", 4000)
	whole := d.ask("ticket-reply", "T-1", long+"THE END", nil)
	page := ana.get("/console/approvals/" + whole.ID)
	require.Contains(t, text(page.Find(".payload")), "THE END")
	require.Equal(t, 1, page.Find("button[value=approve]").Length())

	longer := d.ask("ticket-reply", "T-2", strings.Repeat(long, 3)+"THE END", nil)
	page = ana.get("/console/approvals/" + longer.ID)
	require.Equal(t, []string{"reject", "send_back"}, page.Find(".answers button").Map(func(_ int, s *goquery.Selection) string { return s.AttrOr("value", "") }))
	require.Contains(t, text(page.Find("[data-part=decision]")), "cannot be approved on this page")
}

func TestErrorsSayNothingOfWhatWasAsked(t *testing.T) {
	d := newDesk(t, origin)
	ana := d.signedIn("ana")
	secret := "s3cret-" + strings.Repeat("x", 20)
	for _, path := range []string{"/console/approvals/" + secret, "/console/runs/" + secret, "/console/policy/" + secret, "/" + secret} {
		page := ana.get(path)
		require.Equal(t, http.StatusNotFound, page.Code, path)
		require.NotContains(t, page.html, secret, path)
		require.Contains(t, page.html, page.Header().Get("X-Request-Id"))
	}
	huge := ana.do(http.MethodPost, "/console/language", url.Values{"nonce": {strings.Repeat("x", maxForm)}})
	require.Equal(t, http.StatusRequestEntityTooLarge, huge.Code)
	require.NotContains(t, d.logged.String(), secret)
}
