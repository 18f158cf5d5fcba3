package faultstore_test

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
	"github.com/holdpoint/holdpoint/internal/store/faultstore"
)

// scenario is a part of the governed path. Each of its verbs meets each fault at each of its first calls, and what stands
// at the end must be what stands without a fault.
type scenario struct {
	name    string
	verbs   []string
	prepare func(*world) // before any fault, by another process on the same store; may be nil
	act     func(*world)
}

// scenarios are all of them.
var scenarios = slices.Concat(workScenarios, decisionScenarios, effectScenarios, operatorScenarios)

// uncalled are the verbs that nothing but tests and future versions call.
var uncalled = []string{"Gauges", "HoldConnector", "HoldEffects", "PutProof"}

// elsewhere are the verbs that meet no fault, and those whose faults have tests of their own.
var elsewhere = []string{"Wake", "Close", "BeginStep"}

func TestTheEndIsTheSameWithFaults(t *testing.T) {
	met := sync.Map{} // the verbs that have met faults
	t.Run("scenarios", func(t *testing.T) {
		for _, s := range scenarios {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				plain := newWorld(t, s.prepare)
				s.act(plain)
				plain.told()
				require.Zero(t, plain.unanswered)
				want, calls := plain.outcome(), plain.faults.Calls()
				for _, verb := range s.verbs {
					for n := 1; n <= min(calls[verb], deepest); n++ {
						met.Store(verb, true)
						for _, kind := range kindsOf(verb) {
							t.Run(fmt.Sprintf("%s/%d/%s", verb, n, kind), func(t *testing.T) {
								w := newWorld(t, s.prepare)
								w.faults.Inject(faultstore.Fault{Verb: verb, Kind: kind, Nth: n})
								s.act(w)
								met := func() bool { return len(w.faults.Met()) > 0 }
								if n == 1 {
									w.until("the fault is met", met)
								} else if !w.soon(met) {
									t.Log("this call came without a fault only because of its timing")
								}
								w.told()
								require.Equal(t, want, w.outcome())
							})
						}
					}
				}
			})
		}
	})
	// A verb without a scenario has not been shown to survive a fault.
	if strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return // some scenarios only
	}
	for m := range reflect.TypeFor[store.Store]().Methods() {
		switch _, tested := met.Load(m.Name); {
		case slices.Contains(elsewhere, m.Name):
		case slices.Contains(uncalled, m.Name):
			require.Empty(t, callers(t, m.Name), "%s is called; give it a scenario", m.Name)
		default:
			require.True(t, tested, "no scenario calls %s", m.Name)
		}
	}
}

// readings are the verbs that change nothing: one whose answer is lost is one that was not made.
var readings = []string{"ApprovalByID", "ChallengeByToken", "ConnectorHolds", "Content", "EffectByID", "Events", "FindApprovals", "FindEffects", "FindRuns",
	"FirstForTarget", "InFlight", "ListKeys", "ListPeople", "ListPolicies", "ListTenants", "Now", "PersonByEmail", "PersonByID", "Ping", "PolicyByHash", "Proof",
	"Record", "Switches", "TenantByName", "WorkDurations"}

func kindsOf(verb string) []faultstore.Kind {
	if slices.Contains(readings, verb) {
		return []faultstore.Kind{faultstore.Before}
	}
	return []faultstore.Kind{faultstore.Before, faultstore.After}
}

// callers gives the files of the program that call a verb.
func callers(t *testing.T, verb string) (files []string) {
	for _, dir := range []string{"engine", "dispatch", "api", "console", "../app", "../cmd"} {
		require.NoError(t, filepath.WalkDir(filepath.Join("../..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if strings.Contains(string(text), "store."+verb+"(") {
				files = append(files, path)
			}
			return err
		}))
	}
	return files
}

// decisive are the events of which a doubled one would be a doubled fact. Others say how often somebody tried.
var decisive = []string{"run.claimed", "run.completed", "run.failed", "run.approved", "run.sent_back", "run.cancelled", "run.replaced", "run.linked",
	"step.begun", "step.finished", "step.uncertain", "step.resolved", "draft.accepted", "draft.rejected",
	"approval.created", "approval.expired", "approval.withdrawn", "decision.recorded", "challenge.created", "challenge.opened",
	"effect.queued", "effect.completed", "effect.failed", "effect.cancelled", "effect.resolved",
	"policy.stored", "policy.activated", "person.created", "person.disabled", "person.enabled", "person.password_changed", "role.granted",
	"role.revoked", "tenant.created"}

// outcome is what stands: every run with what hangs on it and what reached the provider, and the tenants.
func (w *world) outcome() []string {
	w.Helper()
	ctx := w.Context()
	runs, next, err := w.store.FindRuns(ctx, store.RunFilter{Tenant: tenant, Limit: 100})
	require.NoError(w, err)
	require.Empty(w, next)
	var lines []string
	for _, r := range runs {
		rec, err := w.store.Record(ctx, tenant, r.ID)
		require.NoError(w, err)
		line := fmt.Sprintf("run %s %s %s attempts=%d revision=%d repairs=%d drafts=%d result=%t", r.Key, r.State, r.Reason, r.Attempts, r.Revision, r.Repairs, len(rec.Drafts), rec.Result != nil)
		for _, x := range rec.Steps {
			line += fmt.Sprintf(" step %s %s", x.Name, x.State)
		}
		for _, x := range rec.Approvals {
			line += fmt.Sprintf(" approval %s", x.State)
		}
		for _, x := range rec.Decisions {
			line += fmt.Sprintf(" decision %s by %s", x.Decision, x.Email)
		}
		for _, x := range rec.Effects {
			line += fmt.Sprintf(" effect %s %s hold=%s reached=%d", x.Slot, x.State, x.Hold, w.provider.CountReference(x.Reference))
			require.LessOrEqual(w, len(w.provider.Objects(x.Reference)), 1, "the provider has accepted an effect twice")
		}
		messages := map[string]int{}
		for _, x := range rec.Messages {
			state := x.State
			if state == "dropped" { // a question that was settled before its message left
				state = "delivered"
			}
			messages[fmt.Sprintf("%s for %s on %s %s", x.Type, x.Email, x.Channel, state)]++
		}
		lines = append(lines, fmt.Sprintf("%s %v %v", line, messages, w.events(tenant, r.ID)))
	}
	tenants, err := w.store.ListTenants(ctx)
	require.NoError(w, err)
	for _, x := range tenants {
		line := fmt.Sprintf("tenant %s policy=%s", x.Name, w.policyName(x.Name, x.ActivePolicy))
		people, err := w.store.ListPeople(ctx, x.Name)
		require.NoError(w, err)
		for _, p := range people {
			line += fmt.Sprintf(" person %s disabled=%t language=%s %v", p.Email, p.Disabled, p.Language, p.GrantedRoles)
		}
		switches, err := w.store.Switches(ctx, x.Name)
		require.NoError(w, err)
		for _, s := range switches {
			line += fmt.Sprintf(" switch %s=%t", s.Scope, s.On)
		}
		holds, err := w.store.ConnectorHolds(ctx, x.Name)
		require.NoError(w, err)
		for _, h := range holds {
			line += fmt.Sprintf(" hold %s %s", h.Connector, h.Hold)
		}
		keys, err := w.store.ListKeys(ctx, x.Name)
		require.NoError(w, err)
		named := map[string]bool{}
		for _, k := range keys { // a key whose secret was lost with its answer stands beside the one that was minted instead
			named[fmt.Sprintf("%s revoked=%t", k.Name, k.RevokedAt != nil)] = true
		}
		flight, err := w.store.InFlight(ctx, x.Name)
		require.NoError(w, err)
		lines = append(lines, fmt.Sprintf("%s keys=%v flight=%d %v", line, named, len(flight), w.events(x.Name, "")))
	}
	slices.Sort(lines)
	return lines
}

// policyName gives a policy's number in the order of storing; its hash holds the provider's address.
func (w *world) policyName(name, hash string) string {
	w.Helper()
	rows, err := w.store.ListPolicies(w.Context(), name)
	require.NoError(w, err)
	slices.SortFunc(rows, func(a, b store.PolicyRow) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return fmt.Sprintf("%d of %d", 1+slices.IndexFunc(rows, func(r store.PolicyRow) bool { return r.Hash == hash }), len(rows))
}

// events counts the decisive events of a place, whose numbers must have no gap.
func (w *world) events(name, runID string) map[string]int {
	w.Helper()
	events, err := w.store.Events(w.Context(), name, runID)
	require.NoError(w, err)
	n := map[string]int{}
	for i, ev := range events {
		require.EqualValues(w, i+1, ev.Seq, "gapless")
		if slices.Contains(decisive, ev.Type) {
			n[ev.Type]++
		}
	}
	return n
}

// duplicate claims an event again as a redelivery would.
func (w *world) duplicate(workflow, key string) holdpoint.ClaimOutcome {
	w.Helper()
	return ask(w, w.claims(claimOf(workflow, key))).Outcome
}
