//go:build e2e && kill

package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/connector/mirror"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/store"
	"github.com/holdpoint/holdpoint/internal/store/sqlstore"
)

// What a connector of a class says in policy, beside its call.
const (
	keyClaim  = "    idempotency: {header: Idempotency-Key, lifetime: 24h}\n"
	lookClaim = `    lookup: {url: "PROVIDER/objects?ref=${effect.reference}", found: "size(response.results) == 1", absent: "size(response.results) == 0", provider_id: /results/0/id, max_lag: 1s, settle: [1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s]}` + "\n"
)

// connectorOf is the connector of a class in policy; the class is its name and its path at the provider.
func connectorOf(c class) string {
	text := strings.ReplaceAll(`  CLASS:
    kind: http
    method: POST
    url: "PROVIDER/CLASS"
    body: {to: "${effect.target}", text: "${effect.payload.text}", external_ref: "${effect.reference}"}
    success: [200]
    provider_id: /id
    timeout: 5s
`, "CLASS", string(c))
	if c == keyed || c == both {
		text += keyClaim
	}
	if c == looked || c == both {
		text += lookClaim
	}
	return text
}

// flow is a workflow of policy with one effect through a connector.
func flow(name, through string) string {
	return fmt.Sprintf(`  %s:
    contract: draft.json
    repairs: 2
    fingerprint: {ignore: [/delivered_at]}
    effects:
      reply: {type: email.reply, connector: %s, consequence: customer_message, target: "${event.customer}", payload: {text: "${draft.reply}"}}
    gate: {roles: [lead]}
`, name, through)
}

// people and roles of the policies of this file.
const staffed = `version: 1
redelivery_window: 30d
roles:
  lead: {users: [` + ana + `, ` + ben + `]}
connectors:
`

// prove records that a connector's provider honours its keys, as a proof of its version would.
func (w *world) prove(s *server, connectors ...class) {
	w.t.Helper()
	all, err := s.otto.Connectors(w.t.Context())
	require.NoError(w.t, err)
	dsn := ""
	for _, e := range w.env {
		if text, ok := strings.CutPrefix(e, "HOLDPOINT_DB="); ok {
			dsn = text
		}
	}
	db, err := sqlstore.Open(w.t.Context(), sqlstore.Options{DSN: dsn})
	require.NoError(w.t, err)
	defer func() { require.NoError(w.t, db.Close()) }()
	now := time.Now()
	for _, name := range connectors {
		for _, c := range all {
			if c.Name == string(name) {
				require.NoError(w.t, db.PutProof(w.t.Context(), store.Proof{Tenant: engine.DefaultTenant, Connector: c.Name, Version: c.Version,
					KeyLife: 24 * time.Hour, ProvedAt: now, ExpiresAt: now.Add(24 * time.Hour)}))
			}
		}
	}
}

// armed starts a server that dies at a point.
func (w *world) armed(point string) *server {
	w.t.Helper()
	return w.launch(serving{binary: pausableBinary(w.t), env: []string{"HOLDPOINT_KILLPOINT=kill:" + point}})
}

// died waits until the server has been killed, by itself or by the test.
func (s *server) died(limit time.Duration) {
	s.w.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(limit):
		s.w.t.Fatalf("the server did not die in %s: %s", limit, s.logged())
	}
	status := s.cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(s.w.t, status.Signaled() && status.Signal() == syscall.SIGKILL, s.logged())
}

// TestCrashTable kills the real binary at each moment of crashTable, for each class of connector, and starts it again.
func TestCrashTable(t *testing.T) {
	pausableBinary(t)
	on(t, func(t *testing.T, p place) {
		for _, c := range classes {
			t.Run(string(c), func(t *testing.T) {
				t.Parallel()
				crashClass(t, p, c)
			})
		}
	}, sqlite, postgres)
}

// crashClass has the servers of one store die one after the other at each moment, each time with another effect under way,
// and then lets the last one find out about all of them.
func crashClass(t *testing.T, p place, c class) {
	document := staffed + connectorOf(c) + "workflows:\n"
	for n := range crashTable {
		document += flow(fmt.Sprintf("row%d", n), string(c))
	}
	w := newWorld(t, p, document)
	w.provider.HonourKeys(c == keyed || c == both)
	s := w.serve(serving{})
	s.switchOn()
	if c == keyed || c == both {
		w.prove(s, c)
	}

	runs := make([]string, len(crashTable))
	for n, row := range crashTable {
		if n > 0 { // what was under way waits, so that the next server dies with its own effect
			s.turn(false, fmt.Sprintf("workflow:row%d", n-1))
		}
		run, a := s.asked(fmt.Sprintf("row%d", n), row.name)
		runs[n] = run
		s.kill()
		switch row.provider {
		case "refuses":
			w.provider.Queue("/"+string(c), mirror.Status(http.StatusTooManyRequests, "", map[string]string{"Retry-After": "1"}))
		case "accepts and stalls":
			w.provider.Queue("/"+string(c), mirror.AcceptThenStall(3*time.Second))
		}
		before := len(w.provider.Writes())
		dying := w.armed(row.point)
		require.True(t, dying.up(), dying.logged())
		// The server may die before it has answered.
		_, _ = dying.ana.Decide(t.Context(), a.ID, client.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: a.Digest})
		if row.point == "" {
			eventually(t, soon, "the provider holds the request", func() bool { return len(w.provider.Writes()) > before })
			dying.kill()
		}
		dying.died(soon)
		s = w.serve(serving{})
		require.Equal(t, holdpoint.ApprovalApproved, s.run(run).Approvals[0].State, "%s: the decision stands", row.name)
	}
	s.turn(false, fmt.Sprintf("workflow:row%d", len(crashTable)-1))

	var dead []string
	for _, p := range lookupPoints {
		if slices.Contains(p.of, c) {
			s.kill()
			s = w.armed(p.point)
			eventually(t, later, "the server has died, or nothing is in doubt", func() bool {
				doubts, _ := w.query("SELECT COUNT(*) FROM effects WHERE state = 'sending' OR state = 'unknown' AND next_lookup_at IS NOT NULL")
				return s.over() || doubts == 0
			})
			select {
			case <-s.ended:
			case <-time.After(5 * time.Second): // it may be about to
				t.Fatalf("%s: nothing is in doubt, although servers died with requests under way", p.point)
			}
			dead = append(dead, p.point)
			s = w.serve(serving{})
		}
	}
	for n := range crashTable {
		s.turn(true, fmt.Sprintf("workflow:row%d", n))
	}
	for n, row := range crashTable {
		t.Run(row.name, func(t *testing.T) { crashed(t, s, runs[n], row.want[c]) })
	}
	for _, point := range dead {
		t.Run(point, func(t *testing.T) {
			for n, row := range crashTable {
				x := s.effect(runs[n])
				require.Equal(t, holdpoint.EffectCompleted, x.State, row.name)
				require.LessOrEqual(t, len(w.provider.Objects(x.Reference)), 1, row.name)
			}
		})
	}
}

// crashed holds one effect to its outcome, says as an operator what is true where a person must, and reads the evidence.
func crashed(t *testing.T, s *server, run string, want outcome) {
	w := s.w
	var x client.Effect
	eventually(t, later, "the effect is "+string(want.state)+" and nothing more will happen", func() bool {
		x = s.effect(run)
		return x.State == want.state && (x.State != holdpoint.EffectUnknown || x.NextLookupAt == nil)
	})
	require.Equal(t, want.requests, w.arrived(x), "requests: %+v", x.AttemptLog)
	require.Len(t, w.provider.Objects(x.Reference), want.objects)
	bodies, keys := map[string]bool{}, map[string]bool{}
	for _, one := range w.provider.Writes() {
		if one.Reference == x.Reference {
			bodies[string(one.Body)], keys[one.Key] = true, true
		}
	}
	require.LessOrEqual(t, len(bodies), 1, "each request has the same bytes")
	require.LessOrEqual(t, len(keys), 1, "each request has the same key")
	if want.state == holdpoint.EffectUnknown {
		require.True(t, x.PossiblyCommitted)
		require.Equal(t, holdpoint.RunApproved, s.run(run).State, "the run waits")
		word := client.Resolution{Verdict: holdpoint.VerdictNotSent, Reason: "nothing is there"}
		if want.objects > 0 {
			word = client.Resolution{Verdict: holdpoint.VerdictSent, ProviderID: w.provider.Objects(x.Reference)[0].ID, Reason: "it is there"}
		}
		_, err := s.otto.Resolve(t.Context(), x.ID, word)
		require.NoError(t, err)
	}
	s.awaitRun(run, soon, holdpoint.RunCompleted)
	require.Len(t, w.provider.Objects(x.Reference), 1)
	s.evidence(run)
}
