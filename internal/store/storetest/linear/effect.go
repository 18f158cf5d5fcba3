package linear

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// effectState is all that the model of an effect remembers. Its zero is an effect that was just released.
type effectState struct {
	State   holdpoint.EffectState // "" is pending
	Moves   int64                 // version - 1
	Owner   string
	Long    bool
	Doubt   bool   // possibly committed
	Ending  bool   // cancelled while in doubt
	Open    string // attempts begun and not settled, each followed by ";"
	Crashed string // attempts given up, which may still answer
	Settled string
}

func (e effectState) as(code string) answer {
	state := e.State
	if state == "" {
		state = holdpoint.EffectPending
	}
	return answer{Code: code, State: string(state), Version: e.Moves + 1, Doubt: e.Doubt}
}

func (e effectState) moved(to holdpoint.EffectState) effectState {
	if e.State = to; to == holdpoint.EffectPending {
		e.State = ""
	}
	if e.Moves++; to != holdpoint.EffectSending {
		e.Owner, e.Long = "", false
	}
	if to == holdpoint.EffectCompleted {
		e.Doubt, e.Ending = false, false
	}
	return e
}

func (e effectState) pending() bool { return e.State == "" }

// proved says of an attempt's name that it was begun with a proof.
func proved(attempt string) bool { return strings.HasPrefix(attempt, "proved-") }

func holds(list, attempt string) bool { return attempt != "" && strings.Contains(list, attempt+";") }

// takeEffect gives the ways in which an effect may take a call.
func takeEffect(e effectState, o op) []possible[effectState] {
	stays := func(code string) possible[effectState] { return possible[effectState]{e, answer{Code: code}} }
	moves := func(next effectState) possible[effectState] { return possible[effectState]{next, next.as("ok")} }
	switch o.Verb {
	case "read":
		return []possible[effectState]{moves(e)}
	case "lease":
		if e.pending() {
			next := e.moved(holdpoint.EffectSending)
			next.Owner, next.Long = o.Owner, o.Long
			return []possible[effectState]{moves(next)}
		}
	case "recover":
		if e.State == holdpoint.EffectSending && !e.Long {
			if e.Open == "" {
				return []possible[effectState]{moves(e.moved(holdpoint.EffectPending))}
			}
			next := e.moved(holdpoint.EffectUnknown)
			next.Doubt, next.Crashed, next.Open = true, e.Crashed+e.Open, ""
			return []possible[effectState]{moves(next)}
		}
	case "begin":
		return takeBegin(e, o, stays, moves)
	case "settle":
		return []possible[effectState]{takeSettle(e, o, stays, moves)}
	case "verdict":
		if e.State != holdpoint.EffectUnknown {
			return []possible[effectState]{stays("not_allowed_now")}
		}
		return []possible[effectState]{moves(e.resolved(holdpoint.Verdict(o.Arg)))}
	case "cancel":
		if !e.pending() && (e.State != holdpoint.EffectSending || e.Open != "") {
			return []possible[effectState]{stays("not_allowed_now")}
		}
		if !e.pending() {
			e = e.moved(holdpoint.EffectPending)
		}
		next := e.moved(holdpoint.EffectFailed)
		if e.Doubt {
			next = e.moved(holdpoint.EffectUnknown)
		}
		next.Ending = true
		return []possible[effectState]{moves(next)}
	}
	return nil
}

func (e effectState) resolved(v holdpoint.Verdict) effectState {
	switch v {
	case holdpoint.VerdictSent:
		return e.moved(holdpoint.EffectCompleted)
	case holdpoint.VerdictAbandon:
		return e.moved(holdpoint.EffectFailed)
	}
	next := e.moved(holdpoint.EffectPending)
	if next.Doubt = false; next.Ending {
		next = next.moved(holdpoint.EffectFailed)
	}
	return next
}

func takeBegin(e effectState, o op, stays func(string) possible[effectState], moves func(effectState) possible[effectState]) []possible[effectState] {
	none := stays("none")
	if e.State != holdpoint.EffectSending || e.Owner != o.Owner {
		return []possible[effectState]{none}
	}
	all := []possible[effectState]{}
	if !e.Long {
		all = append(all, none)
	}
	switch {
	case e.Moves+1 == o.Version+1 && holds(e.Open, o.ID):
		return append(all, moves(e))
	case e.Moves+1 != o.Version:
		return append(all, none)
	case e.Doubt && !proved(o.ID):
		return append(all, possible[effectState]{e.moved(holdpoint.EffectUnknown), none.got})
	}
	next := e.moved(holdpoint.EffectSending)
	next.Open += o.ID + ";"
	return append(all, moves(next))
}

func takeSettle(e effectState, o op, stays func(string) possible[effectState], moves func(effectState) possible[effectState]) possible[effectState] {
	ours := e.State == holdpoint.EffectSending && e.Owner == o.Owner && e.Moves+1 == o.Version
	lost := func(next effectState) possible[effectState] {
		p := moves(next)
		p.got.Lost = true
		return p
	}
	result, to, _ := strings.Cut(o.Arg, " ")
	if o.ID == "" {
		if !ours || e.Open != "" {
			return lost(e)
		}
		return moves(e.moved(holdpoint.EffectPending))
	}
	switch {
	case holds(e.Settled, o.ID):
		return moves(e)
	case !holds(e.Open, o.ID) && !holds(e.Crashed, o.ID):
		return stays("not_found")
	}
	e.Open, e.Crashed, e.Settled = strings.Replace(e.Open, o.ID+";", "", 1), strings.Replace(e.Crashed, o.ID+";", "", 1), e.Settled+o.ID+";"
	if result == string(holdpoint.Accepted) {
		switch {
		case e.pending(): // first doubt, then certainty
			return moves(e.moved(holdpoint.EffectUnknown).moved(holdpoint.EffectCompleted))
		case e.State == holdpoint.EffectSending, e.State == holdpoint.EffectUnknown:
			return moves(e.moved(holdpoint.EffectCompleted))
		}
		return moves(e)
	}
	if !ours {
		return lost(e)
	}
	unclear := result != string(holdpoint.Rejected)
	e.Doubt = e.Doubt || unclear
	if to == string(holdpoint.EffectPending) && unclear && !proved(o.ID) || to == string(holdpoint.EffectFailed) && e.Doubt {
		to = string(holdpoint.EffectUnknown)
	}
	return moves(e.moved(holdpoint.EffectState(to)))
}

// sender is a client of effects: a dispatcher that is slow, crashes, answers late and repeats itself, and an operator.
type sender struct {
	client
	store.Store
	effects []string
	leased  []store.LeasedEffect
	open    []sent
}

// sent is an attempt that may be settled.
type sent struct {
	store.BegunAttempt
	owner string
}

func (d *sender) owner() string { return fmt.Sprint("sender-", d.number) }

func (d *sender) work(ctx context.Context, effects []string, n int) error {
	d.effects = effects
	for range n {
		if err := d.step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *sender) step(ctx context.Context) error {
	dice := d.rand.IntN(20)
	switch {
	case len(d.open) > 2 && dice < 5, len(d.open) > 0 && dice < 2:
		return d.settle(ctx)
	case len(d.leased) > 0 && dice < 10:
		return d.begin(ctx)
	case dice < 13:
		return d.lease(ctx)
	case dice < 15:
		return d.recover(ctx)
	}
	id := d.effects[d.rand.IntN(len(d.effects))]
	if dice = d.rand.IntN(24); dice == 0 {
		return d.one(ctx, id, "cancel", "", func(ctx context.Context) (holdpoint.Effect, error) {
			s, err := d.CancelEffect(ctx, effectsTenant, id, nil, machine)
			return s.Effect, err
		})
	} else if dice < 20 {
		v := []holdpoint.Verdict{holdpoint.VerdictNotSent, holdpoint.VerdictSent, holdpoint.VerdictAbandon}[max(0, d.rand.IntN(14)-11)]
		return d.one(ctx, id, "verdict", string(v), func(ctx context.Context) (holdpoint.Effect, error) {
			s, err := d.ResolveEffect(ctx, store.EffectVerdict{Tenant: effectsTenant, EffectID: id, Verdict: v, Who: machine})
			return s.Effect, err
		})
	}
	return d.one(ctx, id, "read", "", func(ctx context.Context) (holdpoint.Effect, error) {
		e, _, err := d.EffectByID(ctx, effectsTenant, id)
		return e, err
	})
}

// shown is an effect as an answer.
func shown(e holdpoint.Effect) answer {
	return answer{Code: "ok", State: string(e.State), Version: e.Version, Doubt: e.PossiblyCommitted}
}

// one is a call about one effect that answers with it.
func (d *sender) one(ctx context.Context, id, verb, arg string, call func(context.Context) (holdpoint.Effect, error)) error {
	_, _, err := d.call(ctx, op{Object: id, Verb: verb, Arg: arg}, func(ctx context.Context) (answer, error) {
		e, err := call(ctx)
		return shown(e), err
	})
	return err
}

// many is a call that chooses its effects itself. What it gives is one call about each; without an answer it may have met
// any of them.
func (d *sender) many(ctx context.Context, o op, call func(context.Context) ([]holdpoint.Effect, error)) error {
	write := d.write
	defer func() { d.write = write }()
	var found []holdpoint.Effect
	d.write = func(o op) {
		if o.Unknown {
			for _, id := range d.effects {
				o.Object = id
				write(o)
			}
		}
		for _, e := range found {
			o.Object, o.Got = e.ID, shown(e)
			write(o)
		}
	}
	_, _, err := d.call(ctx, o, func(ctx context.Context) (_ answer, err error) {
		found, err = call(ctx)
		return answer{}, err
	})
	return err
}

func (d *sender) lease(ctx context.Context) error {
	o := op{Verb: "lease", Owner: d.owner(), Long: d.rand.IntN(2) == 0}
	l := store.EffectLease{Owner: o.Owner, For: time.Duration(1+d.rand.IntN(10)) * time.Millisecond, Limit: 2, Enabled: true}
	if o.Long {
		l.For = time.Hour
	}
	return d.many(ctx, o, func(ctx context.Context) ([]holdpoint.Effect, error) {
		all, err := d.LeaseEffects(ctx, l)
		d.leased = append(d.leased, all...)
		return bare(all), err
	})
}

func bare(all []store.LeasedEffect) (list []holdpoint.Effect) {
	for _, e := range all {
		list = append(list, e.Effect)
	}
	return list
}

func (d *sender) recover(ctx context.Context) error {
	return d.many(ctx, op{Verb: "recover"}, func(ctx context.Context) (list []holdpoint.Effect, err error) {
		all, err := d.RecoverEffects(ctx, 3)
		for _, s := range all {
			list = append(list, s.Effect)
		}
		return list, err
	})
}

// begin begins what was leased first, twice if the answer is lost, or gives it back.
func (d *sender) begin(ctx context.Context) error {
	e := d.leased[0]
	d.leased = d.leased[1:]
	o := op{Object: e.ID, Verb: "begin", Owner: d.owner(), Version: e.Version, ID: newID()}
	if d.rand.IntN(8) == 0 {
		o.ID, o.Verb, o.Arg = "", "settle", " pending"
		return d.settled(ctx, o, store.Settlement{Tenant: e.Tenant, RunID: e.RunID, EffectID: e.ID, Version: e.Version, State: holdpoint.EffectPending, Trigger: "retry", Who: machine})
	}
	a := store.AttemptBegin{Tenant: e.Tenant, EffectID: e.ID, RunID: e.RunID, Version: e.Version, WireHash: "wire", SendBefore: time.Millisecond}
	if d.rand.IntN(3) > 0 {
		o.ID, a.ProofUntil = "proved-"+o.ID, time.Now().Add(time.Hour)
	}
	a.ID = o.ID
	for range 2 {
		got, told, err := d.call(ctx, o, func(ctx context.Context) (answer, error) {
			begun, err := d.BeginAttempts(ctx, o.Owner, []store.AttemptBegin{a})
			if err != nil || len(begun) == 0 {
				return answer{Code: "none"}, err
			}
			// What a begin answers is the version; state and doubt are what they must be.
			d.open = append(d.open, sent{begun[0], o.Owner})
			return answer{Code: "ok", State: string(holdpoint.EffectSending), Version: begun[0].Version, Doubt: e.PossiblyCommitted}, nil
		})
		if err != nil || told && got.Code == "none" {
			return err
		}
		if told && d.rand.IntN(4) > 0 {
			return nil
		}
	}
	return nil
}

// settle settles an attempt, and keeps some to settle them again.
func (d *sender) settle(ctx context.Context) error {
	i := d.rand.IntN(len(d.open))
	b := d.open[i]
	if d.rand.IntN(2) > 0 {
		d.open = append(d.open[:i:i], d.open[i+1:]...)
	}
	s := store.Settlement{Tenant: effectsTenant, RunID: b.RunID, EffectID: b.EffectID, AttemptID: b.ID, Version: b.Version, Who: machine}
	dice := d.rand.IntN(12)
	if i < len(d.open)-1 && dice > 6 { // later attempts stand open: let the late answer be the one that counts
		dice = 0
	}
	switch {
	case dice == 0:
		s.Outcome.Result, s.State, s.Trigger = holdpoint.Accepted, holdpoint.EffectCompleted, "accept"
	case dice < 3:
		s.Outcome.Result, s.State, s.Trigger = holdpoint.Rejected, holdpoint.EffectFailed, "refuse"
	case dice < 6:
		s.Outcome.Result, s.State, s.Trigger = holdpoint.Unclear, holdpoint.EffectPending, "retry"
	case dice < 8:
		s.Outcome.Result, s.State, s.Trigger = holdpoint.Unclear, holdpoint.EffectUnknown, "doubt"
	default:
		s.Outcome.Result, s.State, s.Trigger = holdpoint.Rejected, holdpoint.EffectPending, "retry"
	}
	return d.settled(ctx, op{Object: b.EffectID, Verb: "settle", Owner: b.owner, Version: b.Version, ID: b.ID, Arg: string(s.Outcome.Result) + " " + string(s.State)}, s)
}

func (d *sender) settled(ctx context.Context, o op, s store.Settlement) error {
	_, _, err := d.call(ctx, o, func(ctx context.Context) (answer, error) {
		all, err := d.SettleAttempts(ctx, o.Owner, []store.Settlement{s})
		if err != nil {
			return answer{}, err
		}
		a := shown(all[0].Effect)
		a.Lost = all[0].Lost
		return a, nil
	})
	return err
}
