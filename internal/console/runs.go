package console

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
)

// laneLimit is how far a lane is counted, and how many approvals the inbox reads.
const laneLimit = 500

// waiting is one question in the inbox. Key is the run's, "" if it cannot be told.
type waiting struct {
	engine.ApprovalBrief
	Key    string
	Record string
}

// lane is one of the four lanes.
type lane struct {
	Name  string
	Count int
	More  bool // there are more than were counted
	Path  string
	Care  bool
}

// inboxPage is the first page: what waits for this person, the lanes, and whether anything leaves at all.
type inboxPage struct {
	Now     time.Time
	Mine    []waiting
	Others  int // pending questions that this person may only look at
	Lanes   []lane
	Sending sending
	Roles   []string
}

func (c *console) inbox(v *visit) error {
	ctx := v.r.Context()
	p := inboxPage{Now: time.Now(), Roles: v.actor.Roles}
	pending, err := v.pending()
	if err != nil && codeOf(err) != holdpoint.CodeForbidden {
		return err
	}
	page, err := v.engine.Runs(ctx, v.actor, engine.RunQuery{State: holdpoint.RunAwaitingHuman, Limit: laneLimit})
	if codeOf(err) == holdpoint.CodeForbidden {
		return v.show(http.StatusOK, "inbox", "title.inbox", "inbox", p)
	}
	if err != nil {
		return err
	}
	runs := map[string]holdpoint.Run{}
	for _, r := range page.Runs {
		runs[r.ID] = r
	}
	for _, a := range pending {
		o := holdpoint.Object{Tenant: a.Tenant, GateRoles: a.Roles, Assurance: a.Assurance}
		if holdpoint.Permit(v.actor, holdpoint.ActionApprovalDecide, o) != nil {
			p.Others++
			continue
		}
		w := waiting{ApprovalBrief: a, Key: runs[a.RunID].Key}
		if op := runs[a.RunID].Operation; op != nil {
			w.Record = op.Record
		}
		p.Mine = append(p.Mine, w)
	}
	slices.SortStableFunc(p.Mine, func(a, b waiting) int { return cmp.Or(a.ApproveBy.Compare(b.ApproveBy), strings.Compare(a.ID, b.ID)) })
	if p.Lanes, err = v.lanes(page); err != nil {
		return err
	}
	s, err := v.engine.Switches(ctx, v.actor)
	if err != nil {
		return err
	}
	p.Sending = sendingOf(s)
	return v.show(http.StatusOK, "inbox", "title.inbox", "inbox", p)
}

// pending reads the pending approvals that the person may see, at most laneLimit.
func (v *visit) pending() ([]engine.ApprovalBrief, error) {
	page, err := v.engine.Approvals(v.r.Context(), v.actor, holdpoint.ApprovalPending, "", laneLimit)
	return page.Approvals, err
}

// lanes counts the four lanes.
func (v *visit) lanes(awaiting engine.RunPage) ([]lane, error) {
	count := func(q engine.EffectQuery) (int, bool, error) {
		q.Limit = laneLimit
		p, err := v.engine.Effects(v.r.Context(), v.actor, q)
		return len(p.Effects), p.Next != "", err
	}
	pending, morePending, err := count(engine.EffectQuery{State: holdpoint.EffectPending})
	unknown, moreUnknown, err2 := count(engine.EffectQuery{State: holdpoint.EffectUnknown})
	held, moreHeld, err3 := count(engine.EffectQuery{Held: true})
	if err := errors.Join(err, err2, err3); err != nil {
		return nil, err
	}
	return []lane{
		{"waiting", len(awaiting.Runs), awaiting.Next != "", "/console/runs?state=awaiting_human", false},
		{"approved", max(0, pending-held), morePending, "/console/runs?state=approved", false},
		{"unknown", unknown, moreUnknown, "/console/unknown", unknown > 0},
		{"held", held, moreHeld, "/console/unknown#held", held > 0},
	}, nil
}

// runsPage is the search.
type runsPage struct {
	Query  engine.RunQuery
	States []holdpoint.RunState
	Runs   []holdpoint.Run
	Next   string
	Now    time.Time
}

// runStates are the six, in the order of a run's life.
var runStates = []holdpoint.RunState{holdpoint.RunProcessing, holdpoint.RunAwaitingHuman, holdpoint.RunApproved,
	holdpoint.RunCompleted, holdpoint.RunFailedRetryable, holdpoint.RunFailedTerminal}

func (c *console) runs(v *visit) error {
	q := v.r.URL.Query()
	p := runsPage{Now: time.Now(), States: runStates, Query: engine.RunQuery{Key: strings.TrimSpace(q.Get("key")), Workflow: strings.TrimSpace(q.Get("workflow")),
		Record: strings.TrimSpace(q.Get("record")), State: holdpoint.RunState(q.Get("state")), Cursor: q.Get("cursor"), Limit: 50}}
	found, err := v.engine.Runs(v.r.Context(), v.actor, p.Query)
	if err != nil {
		return err
	}
	p.Runs, p.Next = found.Runs, found.Next
	return v.show(http.StatusOK, "runs", "title.runs", "runs", p)
}

// runPage is one run with everything that stands about it.
type runPage struct {
	engine.RunView
	Effects  []effectRow
	Steps    []stepRow
	Events   []holdpoint.Event
	Evidence bool // the person may read the events
	Cancel   *operation
	Withdraw *operation
	Models   []string
	Event    node
	Output   node
	Large    bool // the event is too long for this page
}

// operation is a form that asks for a reason.
type operation struct{ Path, Nonce string }

type stepRow struct {
	engine.StepView
	Resolve *operation
}

func (c *console) run(v *visit) error {
	id := v.r.PathValue("id")
	view, err := v.engine.Run(v.r.Context(), v.actor, id)
	if err != nil {
		return err
	}
	p := runPage{RunView: view, Evidence: true}
	if p.Events, err = v.engine.Evidence(v.r.Context(), v.actor, id); codeOf(err) == holdpoint.CodeForbidden {
		p.Evidence = false
	} else if err != nil {
		return err
	}
	lookups, err := v.lookups()
	if err != nil {
		return err
	}
	for _, x := range view.Effects {
		p.Effects = append(p.Effects, v.effectRow(x, lookups, "run"))
	}
	for _, s := range view.Steps {
		row := stepRow{StepView: s}
		if s.State == holdpoint.StepUncertain && v.may(holdpoint.ActionStepResolve) {
			row.Resolve = &operation{v.speech.path("/console/runs", id, "steps", s.Name), v.nonce("step", id+" "+s.Name)}
		}
		p.Steps = append(p.Steps, row)
	}
	for _, d := range view.Drafts {
		m := strings.Join(strings.Fields(strings.Join([]string{d.Model.EndpointClass, d.Model.Name, d.Model.Revision}, " ")), " ")
		if m != "" && !slices.Contains(p.Models, m) {
			p.Models = append(p.Models, m)
		}
	}
	v.endings(&p)
	if p.Large = len(view.Payload) > maxShown; view.Payload != nil && !p.Large {
		p.Event = tree(view.Payload)
	}
	if n := len(view.Drafts); n > 0 && view.Drafts[n-1].Output != nil && len(view.Drafts[n-1].Output) <= maxShown {
		p.Output = tree(view.Drafts[n-1].Output)
	}
	return v.show(http.StatusOK, "run", "title.run", "runs", p)
}

// endings offers what may end the run, to whom may do it.
func (v *visit) endings(p *runPage) {
	for _, a := range p.SafeActions {
		if a.Action == "cancel" && a.Allowed && v.may(holdpoint.ActionRunCancel) {
			p.Cancel = &operation{v.speech.path("/console/runs", p.ID, "cancel"), v.nonce("run", p.ID)}
		}
	}
	for _, a := range p.Approvals {
		free := a.State == holdpoint.ApprovalPending ||
			a.State == holdpoint.ApprovalApproved && slices.ContainsFunc(p.RunView.Effects, func(x engine.EffectView) bool { return x.State == holdpoint.EffectPending })
		if free && v.may(holdpoint.ActionApprovalWithdraw) {
			p.Withdraw = &operation{v.speech.path("/console/approvals", a.ID, "withdraw"), v.nonce("withdraw", a.ID)}
		}
	}
}

func (c *console) runCancel(v *visit) error {
	id := v.r.PathValue("id")
	if err := v.checkNonce("run", id); err != nil {
		return err
	}
	if _, err := v.engine.CancelRun(v.r.Context(), v.actor, id, v.reason()); err != nil {
		return err
	}
	return v.redirect("/console/runs/" + id)
}

func (c *console) stepResolve(v *visit) error {
	id, step := v.r.PathValue("id"), v.r.PathValue("step")
	if err := v.checkNonce("step", id+" "+step); err != nil {
		return err
	}
	r := engine.StepResolution{Verdict: v.r.PostFormValue("verdict"), Reason: v.reason()}
	if _, err := v.engine.ResolveStep(v.r.Context(), v.actor, id, step, r); err != nil {
		return err
	}
	return v.redirect("/console/runs/" + id)
}

// reason is why the person does something, with lines ended as on the page.
func (v *visit) reason() string {
	return strings.TrimSpace(strings.ReplaceAll(v.r.PostFormValue("reason"), "\r\n", "\n"))
}
