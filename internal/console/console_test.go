package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/PuerkitoBio/goquery"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint/internal/auth"
)

const origin = "http://127.0.0.1:8470"

func TestHeadersOnEveryAnswer(t *testing.T) {
	d := newDesk(t, origin)
	ana := d.signedIn("ana")
	for _, path := range []string{"/login", "/console", "/console/style.css", "/approve/x", "/nothing", "/console/runs"} {
		h := ana.get(path).Header()
		require.Equal(t, "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'", h.Get("Content-Security-Policy"), path)
		require.Equal(t, "no-referrer", h.Get("Referrer-Policy"), path)
		require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"), path)
		require.NotEmpty(t, h.Get("X-Request-Id"), path)
		if !strings.HasSuffix(path, ".css") {
			require.Equal(t, "no-store", h.Get("Cache-Control"), path)
		}
	}
	require.Equal(t, http.StatusNotFound, ana.get("/nothing").Code)
	require.Equal(t, "max-age=3600, public", sorted(ana.get("/console/style.css").Header().Get("Cache-Control")))
}

func sorted(s string) string {
	a, b, _ := strings.Cut(s, ", ")
	return b + ", " + a
}

func TestLogin(t *testing.T) {
	d := newDesk(t, origin)
	s := d.stranger()
	page := s.get("/console/runs?key=secret")
	require.Equal(t, http.StatusSeeOther, page.Code)
	require.Equal(t, "/login?next=%2Fconsole%2Fruns", page.Header().Get("Location"), "what was searched for stays behind")

	page = s.get("/login?next=/console/runs")
	require.Equal(t, "en", page.Find("html").AttrOr("lang", ""))
	wrong := s.submit(page, "/login", map[string]string{"email": "ana@acme.example", "password": "wrong"})
	require.Equal(t, http.StatusUnauthorized, wrong.Code)
	require.Equal(t, "/console/runs", wrong.Find("input[name=next]").AttrOr("value", ""))
	unknown := s.submit(page, "/login", map[string]string{"email": "eve@acme.example", "password": "wrong"})
	require.Equal(t, text(wrong.Find("[role=alert]")), text(unknown.Find("[role=alert]")))

	in := s.submit(page, "/login", map[string]string{"email": "ana@acme.example", "password": password})
	require.Equal(t, http.StatusSeeOther, in.Code)
	require.Equal(t, "/console/runs", in.Header().Get("Location"))
	cookie := in.Result().Cookies()[0]
	require.True(t, cookie.HttpOnly)
	require.Equal(t, http.SameSiteStrictMode, cookie.SameSite)
	require.Equal(t, "holdpoint", cookie.Name)

	ana := &browser{desk: d, cookie: cookie, accept: "en"}
	require.Equal(t, http.StatusOK, ana.get("/console").Code)
	require.Equal(t, http.StatusForbidden, ana.do(http.MethodPost, "/logout", url.Values{"nonce": {"x"}}).Code)
	out := ana.submit(ana.get("/console"), "/logout", nil)
	require.Equal(t, http.StatusSeeOther, out.Code)
	require.Equal(t, http.StatusSeeOther, ana.get("/console").Code, "the session is over at the server too")

	// A program may leave the nonce away; one that is wrong is refused.
	bare := s.do(http.MethodPost, "/login", url.Values{"email": {"ana@acme.example"}, "password": {password}})
	require.Equal(t, "/console", bare.Header().Get("Location"))
	require.Equal(t, http.StatusForbidden, s.do(http.MethodPost, "/login", url.Values{"email": {"ana@acme.example"}, "password": {password}, "nonce": {"x"}}).Code)
}

func TestNextStaysHere(t *testing.T) {
	d := newDesk(t, origin)
	for _, next := range []string{"//evil.example", "/\\evil.example", "https://evil.example", "evil", "/a\nb", "/a b", "/console//evil", "javascript:alert(1)", "/\tevil", ""} {
		in := d.stranger().do(http.MethodPost, "/login", url.Values{"email": {"ana@acme.example"}, "password": {password}, "next": {next}},
			func(r *http.Request) { r.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", len(next)+1) })
		if in.Code == http.StatusTooManyRequests {
			continue
		}
		require.Equal(t, "/console", in.Header().Get("Location"), "%q", next)
	}
	require.False(t, localPath("//evil.example"))
	require.False(t, localPath("/%0a\n"))
	require.True(t, localPath("/approve/abc-_"))
}

func TestAFirstPasswordIsChangedBeforeAnythingElse(t *testing.T) {
	d := newDesk(t, origin)
	person, err := d.e.AddPerson(d.ctx, d.signedIn("ops").actor(), "new@acme.example", "")
	require.NoError(t, err)
	in := d.stranger().do(http.MethodPost, "/login", url.Values{"email": {"new@acme.example"}, "password": {person.Password}, "next": {"/console/runs"}})
	require.Equal(t, "/console/password", in.Header().Get("Location"))
	b := &browser{desk: d, cookie: in.Result().Cookies()[0], accept: "de"}
	for _, path := range []string{"/console", "/console/runs", "/console/switches"} {
		require.Equal(t, "/console/password", b.get(path).Header().Get("Location"), path)
	}
	page := b.get("/console/password")
	require.Equal(t, "de", page.Find("html").AttrOr("lang", ""))
	fields := map[string]string{"present": person.Password, "fresh": "a much better one", "again": "a much better two"}
	require.Equal(t, http.StatusUnprocessableEntity, b.submit(page, "/console/password", fields).Code)
	fields["again"] = fields["fresh"]
	fields["present"] = "wrong"
	require.Equal(t, http.StatusForbidden, b.submit(page, "/console/password", fields).Code)
	fields["present"] = person.Password
	done := b.submit(page, "/console/password", fields)
	require.Equal(t, "/console", done.Header().Get("Location"))
	require.Equal(t, http.StatusSeeOther, b.get("/console").Code, "the old session is over")
	b.cookie = done.Result().Cookies()[0]
	require.Equal(t, http.StatusOK, b.get("/console").Code)
	require.Contains(t, b.get("/console").html, "noch keine Rolle")
}

func TestDecidingInTheConsole(t *testing.T) {
	d := newDesk(t, origin)
	ap := d.ask("ticket-reply", "T-1", "Your parcel arrives on Monday.", nil)
	ana := d.signedIn("ana")
	inbox := ana.get("/console")
	require.Equal(t, "/console/approvals/"+ap.ID, inbox.Find(".inbox a").AttrOr("href", ""))
	require.Contains(t, text(inbox.Find(".sending")), "Sending is OFF")

	path := "/console/approvals/" + ap.ID
	card := ana.get(path)
	require.Equal(t, http.StatusOK, card.Code)
	require.Equal(t, "Send 1 e-mail to jane@acme.example", text(card.Find("h1")))
	require.Equal(t, []string{"sentence", "badges", "clocks", "quorum", "effects", "why", "people", "decision", "rerun"},
		card.Find("[data-part]").Map(func(_ int, s *goquery.Selection) string { return s.AttrOr("data-part", "") }))
	require.Equal(t, []string{"approve", "reject", "send_back"}, card.Find(".answers button").Map(func(_ int, s *goquery.Selection) string { return s.AttrOr("value", "") }))
	card.Find(".answers button").Each(func(_ int, s *goquery.Selection) {
		require.Empty(t, s.AttrOr("class", ""), "all answers look alike")
		require.Empty(t, s.AttrOr("autofocus", ""))
	})
	whole := text(card.Find("[data-part=effects]"))
	for _, want := range []string{"jane@acme.example", "Your parcel arrives on Monday.", "Re: Where is my parcel?", ap.Digest, "4711 (text)", "https://mail.acme.example", "First time for this recipient"} {
		require.Contains(t, whole, want)
	}
	for _, want := range []string{"mistral-small", "2506", "local", ap.PolicyHash[:12], "asks before it acts"} {
		require.Contains(t, text(card.Find("[data-part=why]")), want)
	}
	people := text(card.Find("[data-part=people]"))
	for _, want := range []string{"ana@acme.example, bo@acme.example", "You act as ana@acme.example", "https://acme.zendesk.example/tickets/T-1"} {
		require.Contains(t, people, want)
	}
	require.Equal(t, "noopener noreferrer nofollow", card.Find("[data-part=people] a[target]").AttrOr("rel", ""))

	for _, decision := range []string{"reject", "send_back"} {
		again := ana.submit(card, path, map[string]string{"decision": decision, "reason": " "})
		require.Equal(t, http.StatusUnprocessableEntity, again.Code, "%s needs a reason", decision)
		require.Contains(t, text(again.Find("[role=alert]")), "give a reason")
	}
	done := ana.submit(card, path, map[string]string{"decision": "approve", "reason": "looks\r\nright"})
	require.Equal(t, http.StatusSeeOther, done.Code)
	require.Equal(t, path, done.Header().Get("Location"))

	receipt := ana.get(path)
	require.Contains(t, text(receipt.Find("[data-part=sentence]")), "Approved by ana@acme.example")
	require.Contains(t, text(receipt.Find("[data-part=sentence]")), "It waits: sending is switched off.")
	require.Contains(t, text(receipt.Find("[data-part=decision]")), "looks right")
	require.Zero(t, receipt.Find(".answers button").Length())

	// Somebody who comes later, with the page of before, is told what stands.
	bo := d.signedIn("bo")
	form := url.Values{"decision": {"reject"}, "digest": {ap.Digest}, "reason": {"no"}, "nonce": {bo.nonceFor(ap.ID + " " + ap.Digest)}}
	late := bo.do(http.MethodPost, path, form)
	require.Equal(t, http.StatusConflict, late.Code)
	require.Contains(t, text(late.Find("[role=alert]")), "settled already")
	require.Contains(t, text(late.Find("[data-part=sentence]")), "Approved by ana@acme.example")

	d.switchOn()
	d.sendAccepted()
	sent := ana.get(path)
	require.Contains(t, text(sent.Find("[data-part=sentence]")), "Everything was sent and accepted.")
	require.Contains(t, text(sent.Find("[data-part=effects]")), "msg-4711")
}

// nonceFor makes the nonce that the console would have put into the form.
func (b *browser) nonceFor(about string) string {
	return auth.NewNonces([]byte(strings.Repeat("n", 32))).Issue(auth.HashToken(b.cookie.Value), "decide", about, time.Now())
}

func TestADecisionIsBoundToSessionApprovalAndDigest(t *testing.T) {
	d := newDesk(t, origin)
	one, two := d.ask("ticket-reply", "T-1", "One.", nil), d.ask("ticket-reply", "T-2", "Two.", nil)
	ana, bo := d.signedIn("ana"), d.signedIn("bo")
	path := "/console/approvals/" + one.ID
	send := func(b *browser, digest, nonce string, edit ...func(*http.Request)) answer {
		return b.do(http.MethodPost, path, url.Values{"decision": {"approve"}, "digest": {digest}, "nonce": {nonce}}, edit...)
	}
	good := ana.get(path).Find("[data-part=decision] input[name=nonce]").AttrOr("value", "")
	require.NotEmpty(t, good)
	before := d.dump("sessions")
	for name, a := range map[string]answer{
		"no nonce":             send(ana, one.Digest, ""),
		"nonsense":             send(ana, one.Digest, "nonsense"),
		"another session":      send(bo, one.Digest, good),
		"another approval":     send(ana, one.Digest, ana.nonceFor(two.ID+" "+two.Digest)),
		"another digest":       send(ana, two.Digest, good),
		"another site":         send(ana, one.Digest, good, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }),
		"another origin":       send(ana, one.Digest, good, func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", "https://evil.example") }),
		"another form's nonce": send(ana, one.Digest, ana.get(path).Find("form[action='/logout'] input[name=nonce]").AttrOr("value", "")),
	} {
		require.Equal(t, http.StatusForbidden, a.Code, name)
		require.NotContains(t, a.html, one.Digest, name)
		require.Contains(t, a.html, a.Header().Get("X-Request-Id"), name)
	}
	// Looking at the page once more is evidence of its own and bumps the run's counter of events, nothing else.
	require.Equal(t, strip(before), strip(d.dump("sessions")))
	stale := send(ana, strings.Repeat("0", 64), ana.nonceFor(one.ID+" "+strings.Repeat("0", 64)))
	require.Equal(t, http.StatusConflict, stale.Code)
	require.Contains(t, text(stale.Find("[role=alert]")), "changed since you saw it")
	require.Equal(t, one.Digest, stale.Find("input[name=digest]").AttrOr("value", ""))
	require.Equal(t, http.StatusSeeOther, send(ana, one.Digest, good).Code)
}

// strip leaves what is not evidence of reading.
func strip(dump map[string][]string) map[string][]string {
	delete(dump, "events")
	for i, line := range dump["runs"] {
		before, rest, ok := strings.Cut(line, " event_seq=")
		if ok {
			_, after, _ := strings.Cut(rest, " ")
			dump["runs"][i] = before + " " + after
		}
	}
	return dump
}

func TestWhoMayNot(t *testing.T) {
	d := newDesk(t, origin)
	ap := d.ask("ticket-reply", "T-1", "The secret reply.", map[string]any{"created_by": "bo@acme.example"})
	path := "/console/approvals/" + ap.ID

	bo := d.signedIn("bo").get(path)
	require.Equal(t, http.StatusOK, bo.Code)
	require.Contains(t, text(bo.Find("[data-part=decision]")), "You started this run, so another person must decide it.")
	require.Equal(t, 3, bo.Find(".answers button[disabled]").Length(), "the answers are there, and cannot be given")
	require.Zero(t, bo.Find("[data-part=decision] form").Length())

	boer := d.signedIn("bo")
	refused := boer.do(http.MethodPost, path, url.Values{"decision": {"approve"}, "digest": {ap.Digest}, "nonce": {boer.nonceFor(ap.ID + " " + ap.Digest)}})
	require.Equal(t, http.StatusForbidden, refused.Code)
	require.NotContains(t, refused.html, "secret reply")

	ops := d.signedIn("ops").get(path)
	require.Equal(t, http.StatusOK, ops.Code, "an operator may see the question")
	require.NotContains(t, ops.html, "secret reply", "and not its content")
	require.NotContains(t, ops.html, "jane@acme.example")
	require.Contains(t, ops.html, "This needs the role support-lead")

	audit := d.signedIn("audit").get(path)
	require.Contains(t, audit.html, "secret reply")
	require.Zero(t, audit.Find("[data-part=decision] form").Length())

	nobody := d.signedIn("nobody").get(path)
	require.Equal(t, http.StatusForbidden, nobody.Code)
	require.NotContains(t, nobody.html, "secret reply")
	require.NotContains(t, nobody.html, ap.Digest)

	german := &browser{desk: d, cookie: boer.cookie, accept: "de"}
	require.Contains(t, text(german.get(path).Find("[data-part=decision]")), "Sie haben diesen Lauf begonnen")
}

func TestChoosingALanguage(t *testing.T) {
	d := newDesk(t, origin)
	ana := d.signedIn("ana")
	page := ana.get("/console/runs")
	require.Equal(t, "en", page.Find("html").AttrOr("lang", ""))
	done := ana.submit(page, "/console/language", map[string]string{"language": "de"})
	require.Equal(t, "/console/runs", done.Header().Get("Location"))
	page = ana.get("/console/runs")
	require.Equal(t, "de", page.Find("html").AttrOr("lang", ""))
	require.Equal(t, "Läufe", text(page.Find("h1")))
	require.Equal(t, http.StatusBadRequest, ana.submit(page, "/console/language", map[string]string{"language": "xx"}).Code)
}

func TestBelowAPathOfItsOwn(t *testing.T) {
	d := newDesk(t, "https://acme.example/hold")
	token, _, err := d.e.Login(d.ctx, "default", "ana@acme.example", password, "x")
	require.NoError(t, err)
	b := &browser{desk: d, accept: "en", cookie: &http.Cookie{Name: "holdpoint", Value: token}}
	for _, prefix := range []string{"", "/hold"} { // the proxy strips the path, or does not
		page := b.do(http.MethodGet, prefix+"/console", nil, func(r *http.Request) { r.Host = "evil.example"; r.Header.Set("X-Forwarded-Host", "evil.example") })
		require.Equal(t, http.StatusOK, page.Code)
		require.NotContains(t, page.html, "evil.example")
		page.Find("a[href], form[action], link[href]").Each(func(_ int, s *goquery.Selection) {
			address := s.AttrOr("href", s.AttrOr("action", ""))
			require.True(t, strings.HasPrefix(address, "/hold/") || strings.HasPrefix(address, "#"), address)
		})
	}
	in := d.stranger().do(http.MethodPost, "/login", url.Values{"email": {"ana@acme.example"}, "password": {password}, "next": {"/console/runs"}},
		func(r *http.Request) { r.Header.Set("Origin", "https://acme.example"); r.Header.Del("Sec-Fetch-Site") })
	require.Equal(t, "/hold/console/runs", in.Header().Get("Location"))
	cookie := in.Result().Cookies()[0]
	require.True(t, cookie.Secure)
	require.Equal(t, "/hold", cookie.Path)
}

func TestTheConsoleShowsWhatStands(t *testing.T) {
	d := newDesk(t, origin)
	ap := d.ask("ticket-reply", "T-1", "It was sent, perhaps.", map[string]any{"note": true})
	ana, ops := d.signedIn("ana"), d.signedIn("ops")
	path := "/console/approvals/" + ap.ID
	require.Equal(t, http.StatusSeeOther, ana.submit(ana.get(path), path, map[string]string{"decision": "approve"}).Code)

	held := ops.get("/console/unknown")
	require.Contains(t, text(held.Find("main")), "as soon as the switch is on again")
	require.Equal(t, 2, held.Find("article.open").Length())

	switches := ops.get("/console/switches")
	require.Contains(t, text(switches.Find(".sending")), "Sending is OFF")
	for _, scope := range []string{"global", "tenant"} {
		form := url.Values{"scope": {scope}, "on": {"true"}, "reason": {"go"}}
		switches.Find("form").Each(func(_ int, s *goquery.Selection) {
			if s.Find("input[name=scope]").AttrOr("value", "") == scope {
				form.Set("nonce", s.Find("input[name=nonce]").AttrOr("value", ""))
			}
		})
		require.Equal(t, http.StatusSeeOther, ops.do(http.MethodPost, "/console/switches", form).Code)
		form.Set("reason", "")
		require.Equal(t, http.StatusUnprocessableEntity, ops.do(http.MethodPost, "/console/switches", form).Code)
		form.Set("nonce", "x")
		require.Equal(t, http.StatusForbidden, ops.do(http.MethodPost, "/console/switches", form).Code)
	}
	require.Contains(t, text(ops.get("/console/switches").Find(".sending")), "Sending is ON")
	require.Zero(t, ana.get("/console/switches").Find("form[action='/console/switches']").Length())

	d.sendUnclear()
	run := ops.get("/console/runs/" + ap.RunID)
	require.Equal(t, "Did we process this key? in progress Did we send? unknown Who approved? ana@acme.example · drafted by local mistral-small 2506 What is uncertain? reply",
		text(run.Find(".questions dl")))
	require.Contains(t, text(run.Find(".checks")), "Send again ( reply ): no.")
	require.Contains(t, text(run.Find(".timeline")), "Unknown whether it was sent")
	require.NotContains(t, run.html, "It was sent, perhaps.", "an operator sees no content")
	require.Contains(t, ana.get("/console/runs/"+ap.RunID).html, "It was sent, perhaps.")
	require.Contains(t, ana.get("/console/runs/"+ap.RunID).html, "shown to operators and auditors")
	require.Contains(t, text(ana.get(path).Find("[data-part=sentence]")), "It is uncertain whether it was sent.")

	unknown := ops.get("/console/unknown")
	require.Contains(t, text(unknown.Find(".next").First()), "looked up at the provider at")
	resolve := unknown.Find("form[action$='/resolve']").AttrOr("action", "")
	require.NotEmpty(t, resolve)
	require.Equal(t, http.StatusSeeOther, ops.submit(unknown, strings.TrimSuffix(resolve, "resolve")+"reconcile", nil).Code)
	require.Equal(t, http.StatusUnprocessableEntity, ops.submit(unknown, resolve, map[string]string{"verdict": "sent"}).Code, "a verdict needs a reason")
	require.Equal(t, http.StatusForbidden, d.signedIn("ana").do(http.MethodPost, resolve, url.Values{"verdict": {"sent"}, "reason": {"x"}}).Code)
	require.Equal(t, "/console/unknown", ops.submit(unknown, resolve, map[string]string{"verdict": "sent", "provider_id": "m-1", "reason": "found in the outbox"}).Header().Get("Location"))
	require.Contains(t, text(ops.get("/console/runs/"+ap.RunID).Find(".timeline")), "Resolved by an operator")

	for path, want := range map[string]string{
		"/console/runs?state=approved":     "T-1",
		"/console/runs?record=T-1":         "T-1",
		"/console/runs?record=T-2":         "No run matches.",
		"/console/connectors":              "support-mail",
		"/console/people":                  "ana@acme.example",
		"/console/policy":                  "redelivery_window: 30d",
		"/console/policy/" + ap.PolicyHash: "ticket-reply",
	} {
		page := ops.get(path)
		require.Equal(t, http.StatusOK, page.Code, path)
		require.Contains(t, text(page.Find("main")), want, path)
	}
	require.Equal(t, http.StatusForbidden, ana.get("/console/people").Code)
	require.NotContains(t, d.logged.String(), "perhaps")
}

func TestEndingThings(t *testing.T) {
	d := newDesk(t, origin)
	one, two, three := d.ask("ticket-reply", "T-1", "One.", nil), d.ask("ticket-reply", "T-2", "Two.", nil), d.ask("ticket-reply", "T-3", "Three.", nil)
	ana, ops := d.signedIn("ana"), d.signedIn("ops")
	run := ops.get("/console/runs/" + one.RunID)
	require.Equal(t, http.StatusSeeOther, ops.submit(run, "/console/approvals/"+one.ID+"/withdraw", map[string]string{"reason": "wrong ticket"}).Code)
	require.Contains(t, text(ops.get("/console/approvals/"+one.ID).Find("[data-part=sentence]")), "Withdrawn")

	run = ops.get("/console/runs/" + two.RunID)
	require.Equal(t, http.StatusSeeOther, ops.submit(run, "/console/runs/"+two.RunID+"/cancel", map[string]string{"reason": "not needed"}).Code)
	require.Contains(t, text(ops.get("/console/runs/"+two.RunID).Find("main")), "cancelled by an operator")

	path := "/console/approvals/" + three.ID
	require.Equal(t, http.StatusSeeOther, ana.submit(ana.get(path), path, map[string]string{"decision": "approve"}).Code)
	run = ops.get("/console/runs/" + three.RunID)
	cancel := run.Find("form[action$='/cancel'][action*='/effects/']").AttrOr("action", "")
	require.NotEmpty(t, cancel)
	require.Equal(t, "/console/runs/"+three.RunID, ops.submit(run, cancel, map[string]string{"reason": "too late"}).Header().Get("Location"))
	require.Contains(t, text(ana.get(path).Find("[data-part=sentence]")), "Not everything was sent.")
	require.Equal(t, http.StatusConflict, ops.submit(run, cancel, map[string]string{"reason": "again"}).Code)
}
