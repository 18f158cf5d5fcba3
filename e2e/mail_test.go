//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/PuerkitoBio/goquery"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/internal/testenv"
)

// front stands where the public address leads and notes every request that people, programs and browsers make there.
type front struct {
	url string

	mu     sync.Mutex
	target *url.URL
	seen   []string // "METHOD path"
}

func newFront(t testing.TB) *front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := &front{url: "http://" + l.Addr().String()}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.seen = append(f.seen, r.In.Method+" "+r.In.URL.Path)
		r.SetURL(f.target)
		r.Out.Host = r.In.Host
	}}
	s := &http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return f
}

func (f *front) to(t testing.TB, address string) {
	t.Helper()
	u, err := url.Parse(address)
	require.NoError(t, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.target = u
}

// posts gives the paths that were posted to, and forgets what it has seen.
func (f *front) posts() (paths []string, requests int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.seen {
		if method, path, _ := strings.Cut(one, " "); method != http.MethodGet && method != http.MethodHead {
			paths = append(paths, path)
		}
	}
	requests, f.seen = len(f.seen), nil
	return paths, requests
}

// office is a world whose approvers are asked by mail.
type office struct {
	*world
	*server
	front *front
	inbox string // address of the mail server's API
}

func newOffice(t testing.TB, p place) *office {
	t.Helper()
	o := &office{front: newFront(t)}
	smtp, inbox := testenv.Mailpit(t)
	o.inbox = inbox
	document := strings.Replace(governed, "lead: {users: ["+ana+"]}", "lead: {users: ["+ana+", "+ben+"]}", 1)
	document = strings.Replace(document, "workflows:\n", `channels:
  approvers: {kind: smtp, url: "`+smtp+`?tls=none", from: "Holdpoint <holdpoint@acme.example>"}
workflows:
`, 1)
	document = strings.ReplaceAll(document, "gate: {roles: [lead]}", "gate: {roles: [lead], notify: [approvers]}")
	o.world = newWorld(t, p, document)
	o.server = o.serve(serving{env: []string{"HOLDPOINT_PUBLIC_URL=" + o.front.url}})
	o.front.to(t, o.server.url)
	o.switchOn()
	return o
}

// mail is one message as its receiver gets it.
type mail struct {
	Subject, Text, HTML string
	To                  []struct{ Address string }
}

// mails waits for a number of messages and gives them by receiver.
func (o *office) mails(n int) map[string]mail {
	t := o.world.t
	t.Helper()
	var list struct {
		Messages []struct{ ID string }
	}
	eventually(t, soon, "the mail has arrived", func() bool {
		_, _, body := call(t, http.DefaultClient, http.MethodGet, o.inbox+"/api/v1/messages", "", "")
		require.NoError(t, json.Unmarshal([]byte(body), &list))
		return len(list.Messages) >= n
	})
	require.Len(t, list.Messages, n)
	all := map[string]mail{}
	for _, one := range list.Messages {
		var m mail
		_, _, body := call(t, http.DefaultClient, http.MethodGet, o.inbox+"/api/v1/message/"+one.ID, "", "")
		require.NoError(t, json.Unmarshal([]byte(body), &m))
		require.Len(t, m.To, 1, "each person gets a mail of their own")
		all[m.To[0].Address] = m
	}
	return all
}

// link finds the address in a mail.
func (o *office) link(m mail) (address, token string) {
	o.world.t.Helper()
	found := regexp.MustCompile(regexp.QuoteMeta(o.front.url)+`/approve/([A-Za-z0-9_-]{43})\b`).FindAllStringSubmatch(m.Text+m.HTML, -1)
	require.NotEmpty(o.world.t, found, m.Text)
	return found[0][0], found[0][1]
}

// page is one page that a person without JavaScript sees.
type page struct {
	*goquery.Document
	status int
	url    *url.URL
	text   string
}

// person is a browser without scripts: it keeps cookies, follows redirects and sends forms as they stand.
type person struct {
	t    testing.TB
	http *http.Client
}

func newPerson(t testing.TB) person {
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	return person{t, &http.Client{Jar: jar, Timeout: soon}}
}

func (v person) fetch(r *http.Request, err error) page {
	v.t.Helper()
	require.NoError(v.t, err)
	resp, err := v.http.Do(r)
	require.NoError(v.t, err)
	defer resp.Body.Close()
	doc, err := goquery.NewDocumentFromReader(resp.Body)
	require.NoError(v.t, err)
	text, err := doc.Html()
	require.NoError(v.t, err)
	return page{doc, resp.StatusCode, resp.Request.URL, text}
}

func (v person) get(address string) page {
	v.t.Helper()
	return v.fetch(http.NewRequestWithContext(v.t.Context(), http.MethodGet, address, nil))
}

// press fills the form that has a button (or field) matching selector, and sends it.
func (v person) press(p page, selector string, fields map[string]string) page {
	v.t.Helper()
	button := p.Find(selector)
	require.Equal(v.t, 1, button.Length(), "%s on %s", selector, p.url.Path)
	form := button.Closest("form")
	values := url.Values{}
	form.Find("input[name], textarea[name]").Each(func(_ int, s *goquery.Selection) { values.Set(s.AttrOr("name", ""), s.AttrOr("value", "")) })
	if name, ok := button.Attr("name"); ok && button.Is("button") {
		values.Set(name, button.AttrOr("value", ""))
	}
	for name, value := range fields {
		require.Equal(v.t, 1, form.Find("[name="+name+"]").Length(), name)
		values.Set(name, value)
	}
	to, err := p.url.Parse(form.AttrOr("action", ""))
	require.NoError(v.t, err)
	require.Equal(v.t, "post", form.AttrOr("method", "get"))
	r, err := http.NewRequestWithContext(v.t.Context(), http.MethodPost, to.String(), strings.NewReader(values.Encode()))
	if err == nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", to.Scheme+"://"+to.Host)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	return v.fetch(r, err)
}

// hostile is a draft that would like to act by itself.
const hostile = `<script>document.forms[0].submit()</script><img src="PROVIDER/objects?ref=pixel"><b onmouseover="x()">Hi</b> It arrives tomorrow.`

// standing is everything that looking at a page must leave as it is.
func (o *office) standing(runID, approvalID string) any {
	t := o.world.t
	t.Helper()
	card, err := o.otto.Approval(t.Context(), approvalID)
	require.NoError(t, err)
	var events []string
	for _, e := range o.evidence(runID) {
		if e.Type != "content.read" { // of this very reading
			events = append(events, e.Type)
		}
	}
	return []any{card.Approval, card.Asked, card.Run.Version, card.Run.State, events}
}

// scan looks at a link as mail scanners and preview robots do.
func scan(t *testing.T, address string) (body string) {
	t.Helper()
	agents := []string{"Mozilla/5.0", "Slackbot-LinkExpanding 1.0", "GoogleImageProxy", "curl/8", ""}
	for n := range 10 {
		for _, method := range []string{http.MethodHead, http.MethodGet, http.MethodOptions} {
			r, err := http.NewRequestWithContext(t.Context(), method, address, nil)
			require.NoError(t, err)
			r.Header.Set("User-Agent", agents[n%len(agents)])
			resp, err := http.DefaultTransport.RoundTrip(r)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			if method != http.MethodOptions {
				require.Equal(t, http.StatusOK, resp.StatusCode)
				require.Empty(t, resp.Cookies())
			}
		}
	}
	_, _, body = call(t, http.DefaultClient, http.MethodGet, address, "", "")
	return body
}

// TestMail asks for an approval by mail. The link decides nothing by being looked at, says nothing to who has not signed
// in, and leads who has to exactly what will be sent; deciding is an answer to a form.
func TestMail(t *testing.T) {
	on(t, func(t *testing.T, p place) {
		o := newOffice(t, p)
		reply := strings.ReplaceAll(hostile, "PROVIDER", o.provider.URL())
		c := o.claim("ticket", "ticket-1")
		a := o.draft(c, reply)
		mails := o.mails(2)
		require.Equal(t, []string{ana, ben}, slices.Sorted(maps.Keys(mails)))
		address, token := o.link(mails[ben])
		_, anas := o.link(mails[ana])
		require.NotEqual(t, token, anas)
		for _, m := range mails {
			require.NotContains(t, m.Text+m.HTML+m.Subject, "tomorrow", "a mail carries no content")
			require.Contains(t, m.Subject+m.Text, "Send 1 e-mail to "+jane)
		}

		before := o.standing(c.Run.ID, a.ID)
		shut := scan(t, address)
		_, _, unknown := call(t, http.DefaultClient, http.MethodGet, o.front.url+"/approve/"+strings.Repeat("A", 43), "", "")
		require.Equal(t, unknown, shut, "signed out, a live token looks as one that nobody was ever given")
		for _, secret := range []string{"tomorrow", jane, "ticket-1", a.ID, token, ben} {
			require.NotContains(t, shut, secret)
		}
		o.front.posts()
		o.robot(t, address)
		posted, requests := o.front.posts()
		require.Positive(t, requests, "the robot was there")
		require.Empty(t, posted, "no page sends itself")
		require.Equal(t, before, o.standing(c.Run.ID, a.ID), "looking changed nothing")

		// Without signing in there is nothing to press that decides.
		stranger := newPerson(t)
		refused := stranger.press(stranger.get(address), "button[value=link]", nil)
		require.Equal(t, http.StatusNotFound, refused.status, "this gate asks for a log-in")
		require.NotContains(t, refused.text, "tomorrow")
		forged := http.Client{Timeout: soon}
		resp, err := forged.PostForm(address, url.Values{"decision": {"approve"}, "digest": {a.Digest}})
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusForbidden, resp.StatusCode, "a form without its nonce decides nothing")
		require.Equal(t, before, o.standing(c.Run.ID, a.ID))
		require.Empty(t, o.provider.Writes())

		// Ben signs in for the first time, chooses a password of his own, and decides.
		v := newPerson(t)
		login := v.press(v.get(address), "button[value=login]", nil)
		wrong := v.press(login, "input[name=password]", map[string]string{"email": ben, "password": "not his password"})
		require.Equal(t, http.StatusUnauthorized, wrong.status)
		must := v.press(login, "input[name=password]", map[string]string{"email": ben, "password": o.bensPassword})
		require.Equal(t, "/console/password", must.url.Path)
		require.Equal(t, "/console/password", v.get(address).url.Path, "nothing else before that")
		const own = "a much longer password of his own"
		inside := v.press(must, "input[name=present]", map[string]string{"present": o.bensPassword, "fresh": own, "again": own})
		require.Equal(t, http.StatusOK, inside.status)
		require.Equal(t, "/console", inside.url.Path)
		card := v.get(address)
		require.Equal(t, http.StatusOK, card.status)
		require.Contains(t, card.Find("h1").Text(), jane)
		require.Contains(t, card.Text(), a.Digest)
		require.Contains(t, card.Text(), "It arrives tomorrow.")
		require.Zero(t, card.Find("script, img, iframe, [onmouseover], b[onmouseover]").Length(), "content is text")
		require.Zero(t, card.Find("[autofocus]").Length(), "no answer is suggested")

		stale := v.press(card, "button[value=approve]", map[string]string{"nonce": "AAAA"})
		require.Equal(t, http.StatusForbidden, stale.status)
		require.Equal(t, holdpoint.RunAwaitingHuman, o.run(c.Run.ID).State)
		receipt := v.press(card, "button[value=approve]", nil)
		require.Equal(t, http.StatusOK, receipt.status)
		require.Equal(t, "/approve/"+token, receipt.url.Path)
		require.Contains(t, receipt.Text(), ben)

		r := o.awaitRun(c.Run.ID, soon, holdpoint.RunCompleted)
		require.Equal(t, ben, r.Answers.ApprovedBy)
		require.Len(t, o.provider.Writes(), 1)
		require.Equal(t, 1, o.arrived(r.Effects[0]))
		require.Zero(t, o.provider.Lookups(), "no page loaded the picture of the draft")
		var sent struct{ Text string }
		require.NoError(t, json.Unmarshal(o.provider.Writes()[0].Body, &sent))
		require.Equal(t, reply, sent.Text, "what was seen is what was sent")
		receipt = v.get(address)
		require.Contains(t, receipt.Text(), r.Effects[0].ProviderID, "the same address is afterwards the receipt")
		require.Zero(t, receipt.Find("button[name=decision]:not([disabled])").Length())
		require.Equal(t, unknown, scan(t, address), "and to everybody else what it always was")
		challenges, err := o.otto.Approval(t.Context(), a.ID)
		require.NoError(t, err)
		for _, ch := range challenges.Asked {
			require.Equal(t, ch.Email == ben, ch.UsedAt != nil, ch.Email)
		}

		// Neither log nor store knows a token, a password or what was drafted.
		for _, secret := range []string{token, anas, own, o.bensPassword, o.anasToken, "tomorrow", jane} {
			require.NotContains(t, o.logged(), secret)
			if p == sqlite {
				o.notInFiles(t, secret)
			}
		}
		o.stop()
	}, sqlite, postgres)
}

// robot opens an address in a real browser that runs every script for ten seconds of the page's time and presses nothing.
func (o *office) robot(t *testing.T, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), later)
	defer cancel()
	out, err := exec.CommandContext(ctx, testenv.Chromium(t), append(slices.Clone(testenv.ChromiumFlags), profile(t),
		"--virtual-time-budget=10000", "--dump-dom", address)...).Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "<form", "the page was there")
	require.NotContains(t, string(out), "tomorrow")
}

// notInFiles looks for a secret in every file of the store.
func (o *office) notInFiles(t *testing.T, secret string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(o.dir, "holdpoint.db*"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range files {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NotContains(t, string(content), secret, filepath.Base(path))
	}
}

// TestBrowser decides in a real browser, from the link in the mail to the receipt.
func TestBrowser(t *testing.T) {
	t.Parallel()
	o := newOffice(t, sqlite)
	reply := strings.ReplaceAll(hostile, "PROVIDER", o.provider.URL())
	c := o.claim("ticket", "ticket-1")
	a := o.draft(c, reply)
	address, token := o.link(o.mails(2)[ana])

	b := newBrowser(t)
	b.open(address)
	b.click("button[value=login]")
	b.fill("input[name=email]", ana)
	b.fill("input[name=password]", anasPassword)
	b.click("form button.main")
	b.await("document.querySelector('button[value=approve]')")
	b.await(`document.body.innerText.includes("It arrives tomorrow.") && document.body.innerText.includes("` + a.Digest + `")`)
	b.await("document.scripts.length === 0 && document.images.length === 0")
	b.await("document.activeElement === document.body") // no answer has the focus
	posted, _ := o.front.posts()
	require.Equal(t, []string{"/approve/" + token, "/login"}, posted)
	require.Equal(t, holdpoint.RunAwaitingHuman, o.run(c.Run.ID).State)

	b.click("button[value=approve]")
	b.await(`document.readyState === "complete" && !document.querySelector("button[value=approve]:not([disabled])")`)
	posted, _ = o.front.posts()
	require.Equal(t, []string{"/approve/" + token}, posted)
	r := o.awaitRun(c.Run.ID, soon, holdpoint.RunCompleted)
	require.Equal(t, ana, r.Answers.ApprovedBy)
	require.Equal(t, 1, o.arrived(r.Effects[0]))
	b.open(address)
	b.await(`document.body.innerText.includes("` + r.Effects[0].ProviderID + `")`)
	require.Zero(t, o.provider.Lookups(), "the browser loaded nothing that the draft names")

	// A second question, decided in the inbox of the same session.
	d := o.draft(o.claim("ticket", "ticket-2"), "Never mind.")
	b.open(o.front.url + "/console")
	b.click(`a[href$="/console/approvals/` + d.ID + `"]`)
	b.fill("textarea[name=reason]", "we do mind")
	b.click("button[value=reject]")
	r = o.awaitRun(d.RunID, soon, holdpoint.RunFailedTerminal)
	require.Equal(t, holdpoint.ReasonRejected, r.Reason)
	require.Len(t, o.provider.Writes(), 1)
	_, err := o.ana.Decide(t.Context(), d.ID, client.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: d.Digest})
	require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeAlreadyDecided})
}
