package engine_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/connector/mirror"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/policy"
	"github.com/holdpoint/holdpoint/internal/store"
)

// row is one way in which a provider treats a write, and what must become of the effect.
type row struct {
	class    holdpoint.FailureClass // as recorded on the attempt, or on the effect if there was none
	name     string                 // of connector and workflow, where the class alone does not tell rows apart
	b        mirror.Behaviour
	url      string        // instead of the mirror's
	keyLife  time.Duration // of a proof; 0: none
	lookup   bool
	state    holdpoint.EffectState
	hold     holdpoint.Hold
	possibly bool
	wire     int // requests that arrived
}

func (r row) id() string {
	if r.name != "" {
		return r.name
	}
	return strings.ReplaceAll(string(r.class), "_", "-")
}

// TestEveryHTTPRowOfTheMatrix walks each row that a provider behind HTTP can cause, through the real dispatcher.
func TestEveryHTTPRowOfTheMatrix(t *testing.T) {
	w := newWorld(t)
	w.switchOn()
	w.provider.HonourKeys(true)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	untrusted := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(untrusted.Close)
	retry := map[string]string{"Retry-After": "1"}
	const pending, unknown, completed, failed = holdpoint.EffectPending, holdpoint.EffectUnknown, holdpoint.EffectCompleted, holdpoint.EffectFailed
	rows := []row{
		{class: holdpoint.ClassConnect, url: "http://" + closed.Addr().String(), state: pending},
		{class: holdpoint.ClassTLS, url: untrusted.URL, state: pending},
		{class: holdpoint.ClassAmbiguous, name: "ambiguous", b: mirror.AcceptThenClose(), state: unknown, possibly: true, wire: 1},
		{class: holdpoint.ClassAmbiguous, name: "ambiguous-proved", b: mirror.AcceptThenClose(), keyLife: time.Hour, state: completed, wire: 2},
		{class: holdpoint.ClassAmbiguous, name: "ambiguous-look-up", b: mirror.AcceptThenClose(), lookup: true, state: completed, wire: 1},
		{class: holdpoint.ClassKeyWindowOver, b: mirror.AcceptThenClose(), keyLife: 100 * time.Millisecond, state: unknown, possibly: true, wire: 1},
		{class: holdpoint.ClassUnreferenced, b: mirror.Status(200, `{}`, nil).Committing(), state: completed, wire: 1},
		{class: holdpoint.ClassThrottled, b: mirror.Status(429, ``, retry), state: completed, wire: 2},
		{class: holdpoint.ClassOverloaded, b: mirror.Status(503, ``, nil), state: unknown, possibly: true, wire: 1},
		{class: holdpoint.ClassOverloaded, name: "overloaded-proved", b: mirror.Status(502, ``, nil), keyLife: time.Hour, state: completed, wire: 2},
		{class: holdpoint.ClassProviderError, b: mirror.Status(500, ``, nil), state: unknown, possibly: true, wire: 1},
		{class: holdpoint.ClassInProgress, b: mirror.Status(409, ``, retry), state: unknown, possibly: true, wire: 1},
		{class: holdpoint.ClassInProgress, name: "in-progress-proved", b: mirror.Status(409, ``, retry), keyLife: time.Hour, state: completed, wire: 2},
		{class: holdpoint.ClassKeyConflict, b: mirror.Status(400, `{"error":{"type":"idempotency_error"}}`, nil), state: unknown, possibly: true, wire: 1},
		{class: holdpoint.ClassAlreadyExists, b: mirror.Status(409, ``, nil), state: unknown, possibly: true, wire: 1},
		{class: holdpoint.ClassCredentials, b: mirror.Status(401, ``, nil), state: pending, hold: holdpoint.HoldCredentials, wire: 1},
		{class: holdpoint.ClassPermission, b: mirror.Status(403, ``, nil), state: pending, hold: holdpoint.HoldPermission, wire: 1},
		{class: holdpoint.ClassInvalidData, b: mirror.Status(422, ``, nil), state: failed, wire: 1},
		{class: holdpoint.ClassDeclined, b: mirror.Status(402, ``, nil), state: failed, wire: 1},
		{class: holdpoint.ClassGone, b: mirror.Status(410, ``, nil), state: failed, wire: 1},
		{class: holdpoint.ClassQuota, b: mirror.Status(429, `{"error":{"code":"insufficient_quota"}}`, nil), state: pending, hold: holdpoint.HoldQuota, wire: 1},
		{class: holdpoint.ClassPartial, b: mirror.Status(207, `{}`, nil), state: unknown, possibly: true, wire: 1},
		{class: holdpoint.ClassRedirect, b: mirror.Status(307, ``, map[string]string{"Location": "/elsewhere"}), state: pending, hold: holdpoint.HoldConfiguration, wire: 1},
	}
	w.activate(w.matrixPolicy(rows))
	w.prove(rows)
	runs := map[string]string{}
	for _, r := range rows {
		if r.url == "" {
			w.provider.Queue("/m/"+r.id(), r.b)
		}
		c := w.claim("w-"+r.id(), "key-"+r.id())
		w.approve(w.draft(c, `{"reply":"x"}`))
		runs[r.id()] = c.Run.ID
	}
	for _, r := range rows {
		t.Run(r.id(), func(t *testing.T) {
			v := w.until(runs[r.id()], r.id()+" is "+string(r.state), func(v engine.RunView) bool {
				x := v.Effects[0]
				return x.State == r.state && x.Hold == r.hold && len(x.Attempts) > 0 && x.Attempts[0].SettledAt != nil
			})
			x := v.Effects[0]
			require.Equal(t, r.possibly, x.PossiblyCommitted)
			require.Equal(t, r.wire, w.provider.CountPath("/m/"+r.id()))
			class := x.Attempts[0].Class
			if r.class == holdpoint.ClassKeyWindowOver {
				class = x.FailureClass
			}
			require.Equal(t, r.class, class)
			require.NotEmpty(t, policy.Row(r.class).Ref, "the class has its row")
		})
	}
}

// matrixPolicy adds a connector and a workflow for each row to the ticket policy.
func (w *world) matrixPolicy(rows []row) string {
	var connectors, workflows strings.Builder
	for _, r := range rows {
		base := w.provider.URL() + "/m/" + r.id()
		if r.url != "" {
			base = r.url + "/m/" + r.id()
		}
		extra := ""
		if r.keyLife > 0 {
			extra += ", idempotency: {header: Idempotency-Key, max_length: 64, lifetime: 24h}"
		}
		if r.lookup {
			extra += fmt.Sprintf(`, lookup: {url: "%s/objects?ref=${effect.reference}", found: "size(response.results) == 1", absent: "size(response.results) == 0", provider_id: /results/0/id, max_lag: 1s, settle: [1s, 1s]}`, w.provider.URL())
		}
		fmt.Fprintf(&connectors, `  c-%s: {kind: http, method: POST, url: "%s", body: {text: "x", external_ref: "${effect.reference}"}, success: [200, 201], provider_id: /id, timeout: 5s%s}`+"\n", r.id(), base, extra)
		fmt.Fprintf(&workflows, `  w-%[1]s:
    contract: reply.json
    effects:
      e: {type: matrix.write, connector: c-%[1]s, consequence: customer_message, target: "${event.customer.email}", payload: {text: "${draft.reply}"}}
    gate: {pattern: approve_before_act, roles: [support-lead], approve_by: 24h, execute_by: 48h}
`, r.id())
	}
	document := strings.Replace(w.policy(), "connectors:\n", "connectors:\n"+connectors.String(), 1)
	return strings.Replace(document, "\nworkflows:\n", "\nworkflows:\n"+workflows.String(), 1)
}

// prove stores a proof for the connectors of the rows that have one, as `connector prove` will.
func (w *world) prove(rows []row) {
	w.Helper()
	all, err := w.e.Connectors(w.ctx, w.ops)
	require.NoError(w, err)
	for _, c := range all {
		for _, r := range rows {
			if r.keyLife > 0 && c.Name == "c-"+r.id() {
				require.NoError(w, w.store.PutProof(w.ctx, store.Proof{Tenant: "default", Connector: c.Name, Version: c.Version, KeyLife: r.keyLife,
					ProvedAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour)}))
			}
		}
	}
}
