package console

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint/internal/auth"
)

// tokens gives a token of every kind of state: live, used, expired by its approval, unknown and malformed.
func tokens(d *desk) map[string]string {
	d.Helper()
	d.ask("ticket-reply", "T-live", "Live content.", nil)
	out := map[string]string{"live": d.links()["ana@acme.example"]}
	used := d.ask("ticket-reply", "T-used", "Used content.", nil)
	out["used"] = d.links()["ana@acme.example"]
	ana := d.signedIn("ana")
	path := "/console/approvals/" + used.ID
	require.Equal(d, http.StatusSeeOther, ana.submit(ana.get(path), path, map[string]string{"decision": "reject", "reason": "no"}).Code)
	d.ask("memo", "T-link", "Link content.", nil)
	out["link"] = d.links()["ana@acme.example"]
	out["unknown"] = auth.Mint(auth.KindChallenge).Token
	out["malformed"] = "not-a-token"
	for name, token := range out {
		require.NotEmpty(d, token, name)
	}
	return out
}

func TestSignedOutAllTokensLookAlike(t *testing.T) {
	d := newDesk(t, origin)
	all := tokens(d)
	before := d.dump()
	s := d.stranger()
	want := s.get("/approve/" + all["unknown"])
	require.Equal(t, http.StatusOK, want.Code)
	for name, token := range all {
		got := s.get("/approve/" + token)
		require.Equal(t, want.Code, got.Code, name)
		require.Equal(t, want.html, got.html, name)
		require.NotContains(t, got.html, token, name)
		require.NotContains(t, got.html, "ontent.", name)
		for h := range got.Header() {
			if h != "X-Request-Id" {
				require.Equal(t, want.Header()[h], got.Header()[h], "%s %s", name, h)
			}
		}
		for range 3 {
			head := s.do(http.MethodHead, "/approve/"+token, nil, func(r *http.Request) { r.Header.Set("User-Agent", "SafeLinks scanner") })
			require.Equal(t, http.StatusOK, head.Code)
			s.get("/approve/" + token)
		}
	}
	require.Equal(t, before, d.dump(), "scanners change no row of any table")
}

func TestSignedInLookingChangesNothing(t *testing.T) {
	d := newDesk(t, origin)
	all := tokens(d)
	ana, ops := d.signedIn("ana"), d.signedIn("ops")
	before := strip(d.dump("sessions"))
	for range 3 {
		for _, token := range all {
			for _, b := range []*browser{ana, ops} {
				require.Equal(t, http.StatusOK, b.get("/approve/"+token).Code)
				require.Equal(t, http.StatusOK, b.do(http.MethodHead, "/approve/"+token, nil).Code)
			}
		}
	}
	require.Equal(t, before, strip(d.dump("sessions")))
	require.Contains(t, ana.get("/approve/"+all["live"]).html, "Live content.")
	require.Contains(t, ana.get("/approve/"+all["used"]).html, "Rejected")
	nobody := d.signedIn("nobody")
	want := nobody.get("/approve/" + all["unknown"])
	require.Equal(t, text(want.Find("main")), text(nobody.get("/approve/"+all["live"]).Find("main")))
	require.NotContains(t, want.html, "ontent.")
}

func TestLoggingInFromALinkLeadsBack(t *testing.T) {
	d := newDesk(t, origin)
	token := tokens(d)["live"]
	s := d.stranger()
	page := s.get("/approve/" + token)
	form := url.Values{"nonce": {page.Find("input[name=nonce]").AttrOr("value", "")}, "open": {"login"}}
	login := s.do(http.MethodPost, "/approve/"+token, form)
	require.Equal(t, http.StatusOK, login.Code)
	require.Equal(t, "/approve/"+token, login.Find("input[name=next]").AttrOr("value", ""), "the token travels in a form, not in an address")
	in := s.submit(login, "/login", map[string]string{"email": "ana@acme.example", "password": password})
	require.Equal(t, "/approve/"+token, in.Header().Get("Location"))
	ana := &browser{desk: d, accept: "en", cookie: in.Result().Cookies()[0]}
	card := ana.get("/approve/" + token)
	done := ana.submit(card, "/approve/"+token, map[string]string{"decision": "approve"})
	require.Equal(t, "/approve/"+token, done.Header().Get("Location"))
	require.Contains(t, text(ana.get("/approve/"+token).Find("[data-part=sentence]")), "Approved by ana@acme.example")
	require.Contains(t, strings.Join(d.dump()["challenges"], "\n"), "used_at=1")
	require.NotContains(t, d.logged.String(), token)
	signed := ana.do(http.MethodPost, "/approve/"+token, form)
	require.Equal(t, "/approve/"+token, signed.Header().Get("Location"))
}

func TestOpeningWithTheLinkAlone(t *testing.T) {
	d := newDesk(t, origin)
	all := tokens(d)
	s := d.stranger()
	nonce := s.get("/approve/x").Find("input[name=nonce]").AttrOr("value", "")
	open := func(token, nonce string) answer {
		return s.do(http.MethodPost, "/approve/"+token+"/open", url.Values{"nonce": {nonce}})
	}
	before := d.dump()
	want := open(all["unknown"], nonce)
	require.Equal(t, http.StatusNotFound, want.Code)
	for _, name := range []string{"live", "used", "malformed"} { // live needs a log-in
		got := open(all[name], nonce)
		require.Equal(t, want.Code, got.Code, name)
		require.Equal(t, want.html, got.html, name)
	}
	for _, name := range []string{"link", "unknown"} {
		require.Equal(t, http.StatusForbidden, open(all[name], "x").Code, name)
		cross := s.do(http.MethodPost, "/approve/"+all[name]+"/open", url.Values{"nonce": {nonce}}, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") })
		require.Equal(t, http.StatusForbidden, cross.Code, name)
	}
	require.Equal(t, before, d.dump(), "a refusal changes nothing")

	token := all["link"]
	card := s.do(http.MethodPost, "/approve/"+token, url.Values{"nonce": {nonce}, "open": {"link"}}) // the page's own button
	require.Equal(t, http.StatusOK, card.Code)
	require.Contains(t, card.html, "Link content.")
	require.Zero(t, card.Find("nav").Length(), "a link opens no console")
	require.Contains(t, text(card.Find("[data-part=people]")), "You act as ana@acme.example (by this link, without a log-in)")
	require.Contains(t, strings.Join(d.dump()["challenges"], "\n"), "opened_at=1")

	action := "/approve/" + token
	require.Equal(t, http.StatusForbidden, s.do(http.MethodPost, action, url.Values{"decision": {"approve"}, "digest": {"0"}, "nonce": {nonce}}).Code)
	require.Equal(t, http.StatusForbidden, s.do(http.MethodPost, "/approve/"+all["unknown"], url.Values{"decision": {"approve"}, "digest": {"0"}, "nonce": {nonce}}).Code)
	require.Equal(t, http.StatusUnprocessableEntity, s.submit(card, action, map[string]string{"decision": "reject"}).Code)
	done := s.submit(card, action, map[string]string{"decision": "approve"})
	require.Equal(t, http.StatusOK, done.Code)
	require.Contains(t, text(done.Find("[data-part=sentence]")), "Approved by ana@acme.example")
	require.Contains(t, text(done.Find("[data-part=decision]")), "by link, without a log-in")
	late := s.submit(card, action, map[string]string{"decision": "reject", "reason": "changed my mind"})
	require.Equal(t, http.StatusConflict, late.Code)
	require.Contains(t, text(late.Find("[role=alert]")), "settled already")

	again := open(token, nonce)
	require.Equal(t, want.Code, again.Code, "used up")
	require.Equal(t, want.html, again.html)
	require.NotContains(t, d.logged.String(), token)
}
