package console

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/PuerkitoBio/goquery"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/payload"
	"github.com/holdpoint/holdpoint/internal/store"
	"github.com/holdpoint/holdpoint/internal/store/sqlstore"
)

const examplePolicy = `version: 1
redelivery_window: 30d
roles:
  support-lead: {users: [ana@acme.example, bo@acme.example]}
  operator: {users: [ops@acme.example]}
  switch-owner: {users: [ops@acme.example]}
  auditor: {users: [audit@acme.example]}
  policy-owner: {users: [ops@acme.example]}
  tenant-admin: {users: [ops@acme.example]}
connectors:
  support-mail:
    kind: http
    method: POST
    url: "https://mail.acme.example/send"
    body: {text: "${effect.payload.text}", external_ref: "${effect.reference}", to: "${effect.target}"}
    success: [200, 201]
    provider_id: /id
    lookup: {url: "https://mail.acme.example/sent?ref=${effect.reference}", found: "size(response.results) == 1", absent: "size(response.results) == 0", max_lag: 1m, settle: [1m, 5m]}
  crm: {kind: http, method: POST, url: "https://crm.acme.example/notes", body: {text: "${effect.payload.text}"}, success: [200]}
channels:
  mailbox: {kind: smtp, url: "smtp://127.0.0.1:2525?tls=none", from: "Holdpoint <holdpoint@acme.example>"}
workflows:
  ticket-reply:
    contract: reply.json
    repairs: 1
    initiator: /created_by
    subject: /customer/email
    effects:
      reply: {type: email.reply, connector: support-mail, consequence: customer_message, target: "${event.customer.email}", payload: {subject: "Re: ${event.subject}", text: "${draft.reply}", priority: "${event.priority}", ticket: "${event.ticket}"}}
      note: {type: crm.note, connector: crm, consequence: crm_change, target: "${event.customer.id}", payload: {text: "${draft.reply}"}, after: [reply], when: "event.note == true", reversible: {by: "delete the note", within: 10m}}
    gate: {pattern: approve_before_act, roles: [support-lead], assurance: login, approve_by: 24h, execute_by: 48h, notify: [mailbox]}
  memo:
    contract: reply.json
    effects:
      memo: {type: crm.memo, connector: crm, consequence: internal_note, target: "${event.customer.id}", payload: {text: "${draft.reply}"}}
    gate: {pattern: approve_before_act, roles: [support-lead], assurance: link, approve_by: 2h, execute_by: 4h, notify: [mailbox]}
`

const replySchema = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","required":["reply"],"additionalProperties":false,"properties":{"reply":{"type":"string"}}}`

const password = "correct horse battery"

// desk is a console over a real engine on SQLite.
type desk struct {
	testing.TB
	ctx     context.Context
	e       *engine.Engine
	store   *sqlstore.Store
	h       http.Handler
	path    string
	machine holdpoint.Actor
	logged  *bytes.Buffer
	clock   time.Duration // how far the database's clock is ahead
}

func newDesk(t testing.TB, public string) *desk {
	t.Helper()
	d := &desk{TB: t, ctx: t.Context(), path: filepath.Join(t.TempDir(), "hp.db"), logged: &bytes.Buffer{}}
	var err error
	d.store, err = sqlstore.Open(d.ctx, sqlstore.Options{DSN: "sqlite:" + d.path, Now: func() time.Time { return time.Now().Add(d.clock) }})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.store.Close()) })
	require.NoError(t, d.store.Migrate(d.ctx))
	master, err := payload.NewMaster([]byte(strings.Repeat("k", 32)))
	require.NoError(t, err)
	d.e, err = engine.New(engine.Options{Store: d.store, Master: master, PublicURL: public, ActionsEnabled: true})
	require.NoError(t, err)
	local := engine.Local("default", "test")
	require.NoError(t, d.e.CreateTenant(d.ctx, local, "default"))
	for _, name := range []string{"ana", "bo", "ops", "audit", "nobody"} {
		_, err := d.e.AddPerson(d.ctx, local, name+"@acme.example", password)
		require.NoError(t, err)
	}
	stored, err := d.e.PutPolicy(d.ctx, local, engine.PolicyProposal{Document: examplePolicy, Files: map[string]string{"reply.json": replySchema}})
	require.NoError(t, err, "%+v", err)
	require.NoError(t, d.e.ActivatePolicy(d.ctx, local, stored.Hash, ""))
	key, err := d.e.CreateKey(d.ctx, local, "n8n", []holdpoint.Scope{holdpoint.ScopeWork, holdpoint.ScopeRead})
	require.NoError(t, err)
	d.machine, err = d.e.Bearer(d.ctx, key.Key)
	require.NoError(t, err)
	d.h = New(d.e, Options{NonceKey: []byte(strings.Repeat("n", 32)), Log: slog.New(slog.NewTextHandler(d.logged, nil))})
	return d
}

// ask brings a run to its gate and gives the approval.
func (d *desk) ask(workflow, key, reply string, event map[string]any) engine.ApprovalBrief {
	d.Helper()
	full := map[string]any{"customer": map[string]any{"email": "jane@acme.example", "id": "C-17"}, "subject": "Where is my parcel?", "priority": 2,
		"ticket": "4711", "note": false, "created_by": "webform@acme.example"}
	for k, v := range event {
		full[k] = v
	}
	body, err := json.Marshal(full)
	require.NoError(d, err)
	claim, err := d.e.Claim(d.ctx, d.machine, engine.ClaimRequest{Workflow: workflow, Payload: body,
		Operation: &holdpoint.Operation{Source: "zendesk", Record: key, Action: "reply"}, Trigger: &engine.Trigger{Source: "n8n", ExecutionID: "exec-1"}})
	require.NoError(d, err)
	require.Equal(d, holdpoint.Claimed, claim.Outcome)
	output, err := json.Marshal(map[string]string{"reply": reply})
	require.NoError(d, err)
	source, _ := full["source_url"].(string)
	if source == "" {
		source = "https://acme.zendesk.example/tickets/" + key
	}
	a, err := d.e.SubmitDraft(d.ctx, d.machine, claim.Run.ID, engine.DraftRequest{Work: engine.Work{Owner: claim.Lease.Owner, Version: claim.Lease.Version, ExecutionID: "exec-1"},
		Output: output, Model: holdpoint.Model{EndpointClass: "local", Name: "mistral-small", Revision: "2506", FinishReason: "stop"}, SourceURL: source})
	require.NoError(d, err)
	require.Equal(d, "held", a.Outcome)
	return *a.Approval
}

// links delivers the waiting messages and gives the token that each person got, by address.
func (d *desk) links() map[string]string {
	d.Helper()
	out := map[string]string{}
	messages, err := d.store.LeaseMessages(d.ctx, "test", time.Minute, 100)
	require.NoError(d, err)
	for _, m := range messages {
		delivery, err := d.e.PrepareDelivery(d.ctx, m)
		require.NoError(d, err)
		var body struct{ Link string }
		require.NoError(d, json.Unmarshal(delivery.Notify.Body, &body))
		if _, token, ok := strings.Cut(body.Link, "/approve/"); ok {
			out[m.Email] = token
		}
	}
	return out
}

// browser is one person's way to the console. It follows nothing by itself.
type browser struct {
	*desk
	cookie *http.Cookie
	accept string
}

func (d *desk) stranger() *browser { return &browser{desk: d, accept: "en"} }

func (d *desk) signedIn(name string) *browser {
	d.Helper()
	token, _, err := d.e.Login(d.ctx, "default", name+"@acme.example", password, name)
	require.NoError(d, err)
	return &browser{desk: d, accept: "en", cookie: &http.Cookie{Name: "holdpoint", Value: token}}
}

func (b *browser) actor() holdpoint.Actor {
	b.Helper()
	a, _, err := b.e.Session(b.ctx, b.cookie.Value)
	require.NoError(b, err)
	return a
}

// answer is an answer with its document.
type answer struct {
	*httptest.ResponseRecorder
	*goquery.Document
	html string // its bytes
}

func (b *browser) do(method, path string, form url.Values, edit ...func(*http.Request)) answer {
	b.Helper()
	r := httptest.NewRequest(method, "http://127.0.0.1:8470"+path, strings.NewReader(form.Encode()))
	r.Header.Set("Accept-Language", b.accept)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", "http://127.0.0.1:8470")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	if b.cookie != nil {
		r.AddCookie(b.cookie)
	}
	for _, f := range edit {
		f(r)
	}
	w := httptest.NewRecorder()
	b.h.ServeHTTP(w, r)
	body := w.Body.String()
	doc, err := goquery.NewDocumentFromReader(strings.NewReader(body))
	require.NoError(b, err)
	return answer{w, doc, body}
}

func (b *browser) get(path string) answer {
	b.Helper()
	return b.do(http.MethodGet, path, nil)
}

// submit sends the form of a page that goes to an address, with more fields.
func (b *browser) submit(page answer, action string, fields map[string]string) answer {
	b.Helper()
	form := page.Find(fmt.Sprintf("form[method=post][action=%q]", action)).First()
	require.Equal(b, 1, form.Length(), "the page has no form for %s", action)
	values := url.Values{}
	form.Find("input[type=hidden]").Each(func(_ int, s *goquery.Selection) {
		values.Set(s.AttrOr("name", ""), s.AttrOr("value", ""))
	})
	for k, v := range fields {
		values.Set(k, v)
	}
	return b.do(http.MethodPost, action, values)
}

// text is what a part of the page says, element by element, with white space folded.
func text(s *goquery.Selection) string {
	var words []string
	var walk func(*html.Node)
	walk = func(n *html.Node) {
		if n.Type == html.TextNode {
			words = append(words, strings.Fields(n.Data)...)
		}
		for c := n.FirstChild; c != nil; c = c.NextSibling {
			walk(c)
		}
	}
	for _, n := range s.Nodes {
		walk(n)
	}
	return strings.Join(words, " ")
}

// dump gives every row of every table but those that skip names, so that a change anywhere is seen.
func (d *desk) dump(skip ...string) map[string][]string {
	d.Helper()
	db, err := sql.Open("sqlite", d.path)
	require.NoError(d, err)
	defer db.Close()
	out := map[string][]string{}
	tables, err := db.QueryContext(d.ctx, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
	require.NoError(d, err)
	var names []string
	for tables.Next() {
		var name string
		require.NoError(d, tables.Scan(&name))
		names = append(names, name)
	}
	require.NoError(d, tables.Err())
	tables.Close()
	for _, name := range names {
		rows, err := db.QueryContext(d.ctx, "SELECT * FROM "+name)
		require.NoError(d, err)
		columns, err := rows.Columns()
		require.NoError(d, err)
		for rows.Next() {
			values := make([]any, len(columns))
			for i := range values {
				values[i] = new(any)
			}
			require.NoError(d, rows.Scan(values...))
			line := name + ":"
			for i, c := range columns {
				if !contains(skip, name) && !contains(skip, name+"."+c) {
					line += fmt.Sprintf(" %s=%v", c, *values[i].(*any))
				}
			}
			out[name] = append(out[name], line)
		}
		require.NoError(d, rows.Err())
		rows.Close()
		if contains(skip, name) {
			delete(out, name)
		}
	}
	return out
}

func contains(all []string, s string) bool {
	for _, x := range all {
		if x == s {
			return true
		}
	}
	return false
}

// switchOn lets effects leave.
func (d *desk) switchOn() {
	d.Helper()
	ops := d.signedIn("ops").actor()
	for _, scope := range []string{"global", "tenant"} {
		_, err := d.e.SetSwitch(d.ctx, ops, scope, engine.SwitchRequest{On: new(true), Reason: "start"})
		require.NoError(d, err)
	}
}

// send takes due effects as the dispatcher does and settles them all with one outcome.
func (d *desk) send(o holdpoint.Outcome, state holdpoint.EffectState, trigger string, next time.Duration) {
	d.Helper()
	leased, err := d.store.LeaseEffects(d.ctx, store.EffectLease{Owner: "test", For: time.Minute, Limit: 10, Enabled: true})
	require.NoError(d, err)
	require.NotEmpty(d, leased)
	who := holdpoint.Who{Kind: holdpoint.ActorSystem, ID: "dispatcher"}
	for i, x := range leased {
		begun, err := d.store.BeginAttempts(d.ctx, "test", []store.AttemptBegin{{ID: fmt.Sprintf("%s-attempt-%d", x.ID, i), Tenant: x.Tenant, EffectID: x.ID, RunID: x.RunID,
			Version: x.Version, WireHash: strings.Repeat("a", 64), SendBefore: 5 * time.Second}})
		require.NoError(d, err)
		require.Len(d, begun, 1)
		settled, err := d.store.SettleAttempts(d.ctx, "test", []store.Settlement{{Tenant: x.Tenant, RunID: x.RunID, EffectID: x.ID, AttemptID: begun[0].ID, Version: begun[0].Version,
			Outcome: o, State: state, Trigger: trigger, PossiblyCommitted: state == holdpoint.EffectUnknown, Spend: true, Next: next, Who: who}})
		require.NoError(d, err)
		require.Len(d, settled, 1)
		require.Equal(d, state, settled[0].Effect.State)
	}
}

func (d *desk) sendAccepted() {
	d.Helper()
	d.send(holdpoint.Outcome{Result: holdpoint.Accepted, Phase: holdpoint.PhaseComplete, Status: 201, ProviderID: "msg-4711"}, holdpoint.EffectCompleted, "accept", 0)
}

func (d *desk) sendUnclear() {
	d.Helper()
	d.send(holdpoint.Outcome{Result: holdpoint.Unclear, Phase: holdpoint.PhaseWritten, Class: holdpoint.ClassAmbiguous}, holdpoint.EffectUnknown, "doubt", time.Minute)
}
