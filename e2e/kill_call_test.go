//go:build e2e && kill

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
)

// attempt is one call that a server does not survive. make answers a word, by which the first answer and that of the
// repetition are told apart; stands reads whether the call has taken hold.
type attempt struct {
	make         func(*server) (word string, err error)
	stands       func(*server) bool
	first, again string // words; a code where the repetition is refused
}

// TestCrashedCall kills the real binary inside each call of crashedCalls and repeats the call.
func TestCrashedCall(t *testing.T) {
	pausableBinary(t)
	on(t, func(t *testing.T, p place) {
		w := newWorld(t, p, staffed+connectorOf(plain)+"workflows:\n"+flow("ticket", string(plain))+flow("note", string(plain)))
		s := w.serve(serving{}) // the switches stay off: nothing leaves
		for _, row := range crashedCalls {
			require.Contains(t, attempts, row.name)
			t.Run(row.name, func(t *testing.T) {
				for n, point := range row.points() {
					x := attempts[row.name](s, fmt.Sprintf("%s-%d", strings.ReplaceAll(row.name, "_", "-"), n))
					require.False(t, x.stands(s), "%s: the call was not made yet", point)
					s.kill()
					dying := w.armed(point)
					require.True(t, dying.up(), dying.logged())
					_, err := x.make(dying)
					require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeUnavailable}, point)
					dying.died(soon)

					s = w.serve(serving{})
					want := x.again
					if strings.HasSuffix(point, ".before_commit") {
						require.False(t, x.stands(s), "%s: nothing was committed", point)
						want = x.first
					} else {
						require.True(t, x.stands(s), "%s: what was committed stands", point)
					}
					word, err := x.make(s)
					var refused *holdpoint.Error
					if errors.As(err, &refused) {
						word = string(refused.Code)
					} else {
						require.NoError(t, err, point)
					}
					require.Equal(t, want, word, point)
					require.True(t, x.stands(s), point)
				}
			})
		}
		require.Empty(t, w.provider.Writes())
		gaps, _ := w.query(gapsInEvidence)
		require.Zero(t, gaps, "evidence has gaps")
	}, sqlite, postgres)
}

// attempts prepares each of crashedCalls under a name of its own.
var attempts = map[string]func(s *server, name string) attempt{
	"claim": func(s *server, name string) attempt {
		owner := uuid.NewString()
		return attempt{
			make: func(s *server) (string, error) {
				c, err := s.machine.Claim(s.w.t.Context(), client.ClaimRequest{Workflow: "ticket", Key: name, Payload: event(name), Owner: owner})
				if err != nil {
					return "", err
				}
				return fmt.Sprintf("%s %s %d", c.Outcome, c.Lease.Owner, c.Lease.Version), nil
			},
			stands: func(s *server) bool {
				page, err := s.machine.Runs(s.w.t.Context(), client.RunQuery{Key: name})
				require.NoError(s.w.t, err)
				return len(page.Runs) == 1 && page.Runs[0].Attempts == 1
			},
			first: "claimed " + owner + " 1", again: "claimed " + owner + " 1"}
	},
	"renew": func(s *server, name string) attempt {
		c, w := s.hold(name)
		return attempt{
			make: func(s *server) (string, error) {
				l, err := s.machine.Renew(s.w.t.Context(), c.Run.ID, w, 4*time.Minute)
				return fmt.Sprint(l.Version), err
			},
			stands: func(s *server) bool { return s.run(c.Run.ID).LeaseExpiresAt.After(c.Lease.ExpiresAt.Add(time.Minute)) },
			first:  "1", again: "1"}
	},
	"begin_step": func(s *server, name string) attempt {
		c, w := s.hold(name)
		return attempt{
			make: func(s *server) (string, error) {
				a, err := s.machine.BeginStep(s.w.t.Context(), c.Run.ID, "look", client.StepRequest{Work: w})
				return a.Outcome, err
			},
			stands: func(s *server) bool {
				steps := s.run(c.Run.ID).Steps
				return len(steps) == 1 && steps[0].Begins == 1
			},
			first: "run", again: "in_progress"}
	},
	"finish_step": func(s *server, name string) attempt {
		c, w := s.hold(name)
		_, err := s.machine.BeginStep(s.w.t.Context(), c.Run.ID, "look", client.StepRequest{Work: w})
		require.NoError(s.w.t, err)
		return attempt{
			make: func(s *server) (string, error) {
				step, err := s.machine.FinishStep(s.w.t.Context(), c.Run.ID, "look", client.StepEnd{Work: w, Result: json.RawMessage(`{"found": 1}`)})
				return string(step.State), err
			},
			stands: func(s *server) bool { return s.run(c.Run.ID).Steps[0].State == holdpoint.StepCompleted },
			first:  "completed", again: "completed"}
	},
	"invalid_draft": func(s *server, name string) attempt {
		c, w := s.hold(name)
		return attempt{
			make: func(s *server) (string, error) {
				d, err := s.machine.SubmitDraft(s.w.t.Context(), c.Run.ID, client.DraftRequest{Work: w, Output: json.RawMessage(`"no JSON"`), Model: model})
				if err != nil {
					return "", err
				}
				return fmt.Sprintf("%s %d", d.Outcome, *d.RepairsLeft), nil
			},
			stands: func(s *server) bool { return s.run(c.Run.ID).Repairs == 1 },
			first:  "repair 1", again: "repair 1"}
	},
	"draft": func(s *server, name string) attempt {
		c, w := s.hold(name)
		return attempt{
			make: func(s *server) (string, error) {
				d, err := s.machine.SubmitDraft(s.w.t.Context(), c.Run.ID, client.DraftRequest{Work: w, Output: json.RawMessage(`{"reply": "Yes."}`), Model: model})
				return d.Outcome, err
			},
			stands: func(s *server) bool {
				r := s.run(c.Run.ID)
				return len(r.Approvals) == 1 && len(r.Drafts) == 1 && len(r.Effects) == 1 && r.Effects[0].Planned
			},
			first: "held", again: "held"}
	},
	"fail": func(s *server, name string) attempt {
		c, w := s.hold(name)
		return attempt{
			make: func(s *server) (string, error) {
				r, err := s.machine.Fail(s.w.t.Context(), c.Run.ID, client.FailRequest{Work: w, Failure: client.Failure{Class: holdpoint.ClassModelTimeout, Message: "no answer"}})
				return string(r.State), err
			},
			stands: func(s *server) bool { return s.run(c.Run.ID).State == holdpoint.RunFailedRetryable },
			first:  "failed_retryable", again: "failed_retryable"}
	},
	"decide": func(s *server, name string) attempt {
		run, a := s.asked("ticket", name)
		return attempt{
			make: func(s *server) (string, error) {
				d, err := s.ana.Decide(s.w.t.Context(), a.ID, client.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: a.Digest})
				return fmt.Sprintf("%s repeated=%t", d.Approval.State, d.Repeated), err
			},
			stands: func(s *server) bool {
				r := s.run(run)
				return len(r.Decisions) == 1 && len(r.Effects) == 1 && !r.Effects[0].Planned && r.State == holdpoint.RunApproved
			},
			first: "approved repeated=false", again: "approved repeated=true"}
	},
	"withdraw": func(s *server, name string) attempt {
		run, a := s.asked("ticket", name)
		return attempt{
			make: func(s *server) (string, error) {
				x, err := s.otto.Withdraw(s.w.t.Context(), a.ID, "a mistake")
				return string(x.Approval.State), err
			},
			stands: func(s *server) bool {
				r := s.run(run)
				return r.Approvals[0].State == holdpoint.ApprovalWithdrawn && r.State == holdpoint.RunFailedTerminal
			},
			first: "withdrawn", again: "withdrawn"}
	},
	"cancel_run": func(s *server, name string) attempt {
		run, _ := s.asked("ticket", name)
		return attempt{
			make: func(s *server) (string, error) {
				r, err := s.otto.CancelRun(s.w.t.Context(), run, "a mistake")
				return string(r.State), err
			},
			stands: func(s *server) bool { return s.run(run).State == holdpoint.RunFailedTerminal },
			first:  "failed_terminal", again: string(holdpoint.CodeNotAllowedNow)}
	},
	"replace": func(s *server, name string) attempt {
		run, _ := s.asked("ticket", name)
		correction := uuid.NewString()
		return attempt{
			make: func(s *server) (string, error) {
				x, err := s.otto.Replace(s.w.t.Context(), run, client.ReplaceRequest{Key: correction, Payload: event(name), Reason: "corrected"})
				return fmt.Sprintf("created=%t", x.Created), err
			},
			stands: func(s *server) bool {
				r := s.run(run)
				return r.ReplacedBy != "" && s.run(r.ReplacedBy).Replaces == run
			},
			first: "created=true", again: "created=false"}
	},
	"cancel_effect": func(s *server, name string) attempt {
		run := s.released("ticket", name)
		x := s.effect(run)
		return attempt{
			make: func(s *server) (string, error) {
				x, err := s.otto.CancelEffect(s.w.t.Context(), x.ID, "a mistake")
				return string(x.State), err
			},
			stands: func(s *server) bool { return s.effect(run).State == holdpoint.EffectFailed },
			first:  "failed", again: string(holdpoint.CodeNotAllowedNow)}
	},
	"switch_off": func(s *server, name string) attempt {
		s.turn(true, "workflow:note")
		return attempt{
			make: func(s *server) (string, error) {
				f, err := s.otto.SetSwitch(s.w.t.Context(), "workflow:note", false, "a storm")
				return fmt.Sprintf("on=%t", f.On), err
			},
			stands: func(s *server) bool {
				all, err := s.otto.Switches(s.w.t.Context())
				require.NoError(s.w.t, err)
				return slices.ContainsFunc(all.Switches, func(x holdpoint.Switch) bool { return x.Scope == "workflow:note" && !x.On })
			},
			first: "on=false", again: "on=false"}
	},
	"store_policy": func(s *server, name string) attempt {
		return attempt{
			make: func(s *server) (string, error) {
				_, err := s.otto.PutPolicy(s.w.t.Context(), s.variant(name), map[string]string{"draft.json": contract})
				return "stored", err
			},
			stands: func(s *server) bool {
				all, err := s.otto.Policies(s.w.t.Context())
				require.NoError(s.w.t, err)
				n := 0
				for _, one := range all {
					if p, err := s.otto.Policy(s.w.t.Context(), one.Hash); err == nil && strings.Contains(p.Document, "  "+name+":") {
						n++
					}
				}
				require.LessOrEqual(s.w.t, n, 1)
				return n == 1
			},
			first: "stored", again: "stored"}
	},
	"activate_policy": func(s *server, name string) attempt {
		active, err := s.otto.Policy(s.w.t.Context(), "active")
		require.NoError(s.w.t, err)
		stored, err := s.otto.PutPolicy(s.w.t.Context(), s.variant(name), map[string]string{"draft.json": contract})
		require.NoError(s.w.t, err)
		return attempt{
			make: func(s *server) (string, error) {
				return "activated", s.otto.ActivatePolicy(s.w.t.Context(), stored.Hash, active.Hash)
			},
			stands: func(s *server) bool {
				now, err := s.otto.Policy(s.w.t.Context(), "active")
				require.NoError(s.w.t, err)
				return now.Hash == stored.Hash
			},
			first: "activated", again: string(holdpoint.CodePolicyMoved)}
	},
	"add_person": func(s *server, name string) attempt {
		email := name + "@acme.example"
		return attempt{
			make: func(s *server) (string, error) {
				u, err := s.otto.AddUser(s.w.t.Context(), email, "")
				return u.Email, err
			},
			stands: func(s *server) bool { return s.user(email) != nil },
			first:  email, again: string(holdpoint.CodeExists)}
	},
	"grant_role": func(s *server, name string) attempt {
		email := name + "@acme.example"
		_, err := s.otto.AddUser(s.w.t.Context(), email, "")
		require.NoError(s.w.t, err)
		return attempt{
			make:   func(s *server) (string, error) { return "granted", s.otto.GrantRole(s.w.t.Context(), email, "auditor") },
			stands: func(s *server) bool { return slices.Contains(s.user(email).Roles, "auditor") },
			first:  "granted", again: "granted"}
	},
	"create_key": func(s *server, name string) attempt {
		return attempt{
			make: func(s *server) (string, error) {
				k, err := s.otto.CreateKey(s.w.t.Context(), name, []holdpoint.Scope{holdpoint.ScopeRead})
				if err == nil {
					_, err = client.New(s.url, k.Key).Me(s.w.t.Context())
				}
				return "a key that works", err
			},
			stands: func(s *server) bool { return s.key(name) != nil },
			first:  "a key that works", again: "a key that works"}
	},
	"revoke_key": func(s *server, name string) attempt {
		k, err := s.otto.CreateKey(s.w.t.Context(), name, []holdpoint.Scope{holdpoint.ScopeRead})
		require.NoError(s.w.t, err)
		return attempt{
			make: func(s *server) (string, error) { return "revoked", s.otto.RevokeKey(s.w.t.Context(), k.ID) },
			stands: func(s *server) bool {
				_, err := client.New(s.url, k.Key).Me(s.w.t.Context())
				return errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeUnauthenticated})
			},
			first: "revoked", again: "revoked"}
	},
}

// hold claims an event for a minute and gives what each work call must name.
func (s *server) hold(key string) (client.Claim, client.Work) {
	s.w.t.Helper()
	lease := holdpoint.Duration(time.Minute)
	c, err := s.machine.Claim(s.w.t.Context(), client.ClaimRequest{Workflow: "ticket", Key: key, Payload: event(key), Lease: &lease})
	require.NoError(s.w.t, err)
	require.Equal(s.w.t, holdpoint.Claimed, c.Outcome)
	return c, client.Work{Owner: c.Lease.Owner, Version: c.Lease.Version}
}

// variant is the active policy with one workflow more.
func (s *server) variant(name string) string {
	s.w.t.Helper()
	p, err := s.otto.Policy(s.w.t.Context(), "active")
	require.NoError(s.w.t, err)
	if strings.Contains(p.Document, "  "+name+":") {
		return p.Document
	}
	return p.Document + flow(name, string(plain))
}

// user gives a person's account, nil if there is none.
func (s *server) user(email string) *client.User {
	s.w.t.Helper()
	all, err := s.otto.Users(s.w.t.Context())
	require.NoError(s.w.t, err)
	for _, u := range all {
		if u.Email == email {
			return &u
		}
	}
	return nil
}

// key gives a key by its name, nil if there is none.
func (s *server) key(name string) *holdpoint.Key {
	s.w.t.Helper()
	all, err := s.otto.Keys(s.w.t.Context())
	require.NoError(s.w.t, err)
	for _, k := range all {
		if k.Name == name {
			return &k
		}
	}
	return nil
}
