package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/lang"
	"github.com/holdpoint/holdpoint/internal/store"
)

// EffectView is an effect with its attempts. Target and Payload are set only for those who may see content.
type EffectView struct {
	holdpoint.Effect
	Target   string              `json:"target,omitempty"`
	Payload  json.RawMessage     `json:"payload,omitempty"`
	Planned  bool                `json:"planned,omitempty"` // rendered, not released: it cannot be sent
	Attempts []holdpoint.Attempt `json:"attempt_log,omitempty"`
}

// DecisionView is a decision; Reason is set only for those who may see content.
type DecisionView struct {
	holdpoint.DecisionRecord
	Reason string `json:"reason,omitempty"`
}

// StepView is a step; Result is set only for those who may see content.
type StepView struct {
	holdpoint.Step
	Result json.RawMessage `json:"result,omitempty"`
}

// DraftView is a draft; Output and SourceURL are set only for those who may see content.
type DraftView struct {
	holdpoint.Draft
	Output    json.RawMessage `json:"output,omitempty"`
	SourceURL string          `json:"source_url,omitempty"`
}

// Answers are the four questions (R5.2), and which model drafted.
type Answers struct {
	Processed  string   `json:"processed"`   // yes, no, in_progress or waiting
	Sent       string   `json:"sent"`        // yes, no, partly, not_yet or unknown
	ApprovedBy string   `json:"approved_by"` // the person, or ""
	Model      string   `json:"model"`
	Uncertain  []string `json:"uncertain"` // slots and steps whose end nobody knows
}

// SafeAction is one thing that somebody might want to do now, whether it is safe, and why.
type SafeAction struct {
	Action  string `json:"action"` // claim, replace, cancel, withdraw, resolve, reconcile, resolve_step, resend
	Subject string `json:"subject,omitempty"`
	Allowed bool   `json:"allowed"`
	Why     string `json:"why"`
}

// RunView is one run with everything that hangs on it. Content says whether the reader may see content.
type RunView struct {
	holdpoint.Run
	Content     bool                      `json:"content"`
	Payload     json.RawMessage           `json:"payload,omitempty"`
	Result      json.RawMessage           `json:"result,omitempty"`
	FailureText string                    `json:"failure_text,omitempty"`
	Drafts      []DraftView               `json:"drafts"`
	Approvals   []ApprovalBrief           `json:"approvals"`
	Decisions   []DecisionView            `json:"decisions"`
	Effects     []EffectView              `json:"effects"`
	Steps       []StepView                `json:"steps"`
	Messages    []holdpoint.MessageRecord `json:"messages"`
	Answers     Answers                   `json:"answers"`
	SafeActions []SafeAction              `json:"safe_actions"`
	Now         time.Time                 `json:"now"` // the database's clock at this reading
}

// Run gives one run. Content is shown, and its reading recorded, for those whom the permission function lets see it.
func (e *Engine) Run(ctx context.Context, a holdpoint.Actor, runID string) (RunView, error) {
	if err := permit(a, holdpoint.ActionRunView); err != nil {
		return RunView{}, err
	}
	rec, err := e.store.Record(ctx, a.Tenant, runID)
	if err != nil {
		return RunView{}, err
	}
	b, err := e.openBox(a.Tenant, runID, rec.RunKey)
	if err != nil {
		return RunView{}, err
	}
	allowed, own, err := e.mayRead(ctx, a, rec, b)
	if err != nil {
		return RunView{}, err
	}
	v, err := e.view(rec, b, allowed)
	if err != nil || !allowed || own {
		return v, err
	}
	return v, e.noteReading(ctx, a, rec.Run, "run")
}

// mayRead asks the permission function whether a may see the run's content. own says that a works on the run, so that
// it has brought the content itself.
func (e *Engine) mayRead(ctx context.Context, a holdpoint.Actor, rec store.Record, b box) (allowed, own bool, err error) {
	o := holdpoint.Object{Tenant: rec.Run.Tenant}
	if n := len(rec.Approvals); n > 0 {
		if o, err = e.object(ctx, rec, rec.Approvals[n-1], b); err != nil {
			return false, false, err
		}
	}
	if a.Kind == holdpoint.ActorMachine {
		events, err := e.store.Events(ctx, rec.Run.Tenant, rec.Run.ID)
		if err != nil {
			return false, false, err
		}
		for _, ev := range events {
			if ev.Type == "run.claimed" {
				o.WorkedBy = append(o.WorkedBy, ev.Who.ID)
			}
		}
	}
	return holdpoint.Permit(a, holdpoint.ActionRunContent, o) == nil, slices.Contains(o.WorkedBy, a.ID), nil
}

// noteReading records that content was seen by somebody who has not brought it.
func (e *Engine) noteReading(ctx context.Context, a holdpoint.Actor, run holdpoint.Run, what string) error {
	return e.store.AddEvents(ctx, []holdpoint.Event{{Tenant: run.Tenant, RunID: run.ID, Type: "content.read", Who: who(a), Data: map[string]any{"what": what}}})
}

// view opens a record as far as the reader may see it.
func (e *Engine) view(rec store.Record, b box, content bool) (RunView, error) {
	v := RunView{Run: rec.Run, Content: content, Messages: rec.Messages, Now: rec.Now}
	o := opener{box: b, on: content}
	v.Payload, v.Result = o.bytes("payload", rec.Payload), o.bytes("result", rec.Result)
	v.FailureText = string(o.bytes("failure", rec.FailText))
	for _, d := range rec.Drafts {
		v.Drafts = append(v.Drafts, DraftView{d.Draft, o.bytes(fmt.Sprintf("draft:%d", d.Revision), d.Output), string(o.bytes(fmt.Sprintf("source:%d", d.Revision), d.SourceURL))})
	}
	for _, ap := range rec.Approvals {
		v.Approvals = append(v.Approvals, *e.brief(ap))
	}
	for _, d := range rec.Decisions {
		v.Decisions = append(v.Decisions, DecisionView{d.DecisionRecord, string(o.bytes("decision:"+d.ID, d.ReasonText))})
	}
	released := map[string]bool{}
	for _, x := range rec.Effects {
		released[x.ID] = true
		ev := EffectView{Effect: x.Effect, Target: string(o.bytes("target:"+x.ID, x.Target)), Payload: o.bytes("effect:"+x.ID, x.Payload)}
		for _, at := range rec.Attempts {
			if at.EffectID == x.ID {
				ev.Attempts = append(ev.Attempts, at)
			}
		}
		v.Effects = append(v.Effects, ev)
	}
	for _, x := range rec.Planned {
		if x.Revision == rec.Run.Revision && !released[x.ID] {
			v.Effects = append(v.Effects, EffectView{Effect: holdpoint.Effect{EffectSpec: x.EffectSpec, Tenant: rec.Run.Tenant}, Planned: true,
				Target: string(o.bytes("target:"+x.ID, x.Target)), Payload: o.bytes("effect:"+x.ID, x.Payload)})
		}
	}
	for _, s := range rec.Steps {
		v.Steps = append(v.Steps, StepView{s.Step, o.bytes("step:"+s.Name, s.Result)})
	}
	v.Answers, v.SafeActions = answers(v), safeActions(v)
	return v, o.err
}

// opener opens sealed fields, remembering the first error.
type opener struct {
	box box
	on  bool
	err error
}

func (o *opener) bytes(label string, sealed []byte) []byte {
	if !o.on || o.err != nil {
		return nil
	}
	var plain []byte
	plain, o.err = o.box.open(label, sealed)
	return plain
}

// RunQuery selects runs; empty fields select all.
type RunQuery struct {
	Key, Workflow, Record, Cursor string
	State                         holdpoint.RunState
	Limit                         int
}

// RunPage is one page of runs, newest first; Next is the cursor of the next page, "" at the end.
type RunPage struct {
	Runs []holdpoint.Run `json:"runs"`
	Next string          `json:"next_cursor,omitempty"`
}

// Runs lists runs.
func (e *Engine) Runs(ctx context.Context, a holdpoint.Actor, q RunQuery) (RunPage, error) {
	if err := permit(a, holdpoint.ActionRunView); err != nil {
		return RunPage{}, err
	}
	runs, next, err := e.store.FindRuns(ctx, store.RunFilter{Tenant: a.Tenant, Key: q.Key, Workflow: q.Workflow, Record: q.Record, State: q.State, Cursor: q.Cursor, Limit: q.Limit})
	return RunPage{runs, next}, err
}

// Evidence gives a run's events in order; runID "" gives the tenant's own.
func (e *Engine) Evidence(ctx context.Context, a holdpoint.Actor, runID string) ([]holdpoint.Event, error) {
	if err := permit(a, holdpoint.ActionEvidenceView); err != nil {
		return nil, err
	}
	if runID != "" {
		if _, err := e.store.Content(ctx, a.Tenant, runID); err != nil {
			return nil, err
		}
	}
	return e.store.Events(ctx, a.Tenant, runID)
}

// ApprovalPage is one page of approvals, next due first.
type ApprovalPage struct {
	Approvals []ApprovalBrief `json:"approvals"`
	Next      string          `json:"next_cursor,omitempty"`
}

// The bounds of one page of approvals.
const (
	approvalsPage  = 50 // if the caller names no limit
	approvalsReads = 50 // how often more are read while the actor may view too few
)

// Approvals lists approvals in a state that the actor may view. Those of others do not shorten the page: more are read
// in their place, up to a bound.
func (e *Engine) Approvals(ctx context.Context, a holdpoint.Actor, state holdpoint.ApprovalState, cursor string, limit int) (ApprovalPage, error) {
	page := ApprovalPage{Approvals: []ApprovalBrief{}, Next: cursor}
	if limit <= 0 {
		limit = approvalsPage
	}
	// Nothing to judge by where nothing is listed: a caller without any right must not read that as "nothing waits".
	refused := permit(a, holdpoint.ActionRunView)
	for n := 0; n < approvalsReads && len(page.Approvals) < limit && (n == 0 || page.Next != ""); n++ {
		rows, next, err := e.store.FindApprovals(ctx, a.Tenant, state, page.Next, limit-len(page.Approvals))
		if err != nil {
			return page, err
		}
		page.Next = next
		for _, ap := range rows {
			o := holdpoint.Object{Tenant: ap.Tenant, GateRoles: ap.Roles, Assurance: ap.Assurance}
			switch d := holdpoint.Permit(a, holdpoint.ActionApprovalView, o); {
			case d == nil:
				page.Approvals = append(page.Approvals, *e.brief(ap))
			case d.Code != holdpoint.CodeForbidden:
				refused = d.Err() // a scope is missing, and not only a role in this gate
			}
		}
	}
	if len(page.Approvals) == 0 && refused != nil {
		return page, refused
	}
	return page, nil
}

// Card is everything that an approver must see, and everything that the page afterwards says as a receipt (R3.7).
type Card struct {
	Sentence  string                `json:"sentence"`
	Approval  ApprovalBrief         `json:"approval"`
	Run       RunView               `json:"run"`
	Effects   []EffectView          `json:"effects"` // exactly the effects of the approval's revision
	FirstTime map[string]bool       `json:"first_time"`
	Draft     DraftView             `json:"draft"`
	Faults    []string              `json:"faults"` // what was wrong with outputs that were sent to repair: code and pointer
	Asked     []holdpoint.Challenge `json:"asked"`
	Eligible  []string              `json:"eligible"` // e-mail addresses of who may decide
	Earlier   []holdpoint.Run       `json:"earlier"`  // other runs of the same record
	Given     int                   `json:"quorum_given"`
	Missing   int                   `json:"quorum_missing"`
	ActAs     string                `json:"act_as"`
	MayDecide bool                  `json:"may_decide"`
	WhyNot    string                `json:"why_not,omitempty"`
	Standing  *DecisionView         `json:"standing,omitempty"`
}

// Approval gives one approval with quorum given and missing; with content for those who may see it.
func (e *Engine) Approval(ctx context.Context, a holdpoint.Actor, id, language string) (Card, error) {
	ap, err := e.store.ApprovalByID(ctx, a.Tenant, id)
	if err != nil {
		return Card{}, err
	}
	rec, err := e.store.Record(ctx, a.Tenant, ap.RunID)
	if err != nil {
		return Card{}, err
	}
	b, err := e.openBox(a.Tenant, ap.RunID, rec.RunKey)
	if err != nil {
		return Card{}, err
	}
	o, err := e.object(ctx, rec, ap, b)
	if err != nil {
		return Card{}, err
	}
	if err := holdpoint.Permit(a, holdpoint.ActionApprovalView, o).Err(); err != nil {
		return Card{}, err
	}
	content := holdpoint.Permit(a, holdpoint.ActionRunContent, o) == nil
	v, err := e.view(rec, b, content)
	if err != nil {
		return Card{}, err
	}
	c := Card{Approval: *e.brief(ap), Run: v, FirstTime: map[string]bool{}, ActAs: a.Email, Missing: ap.Quorum, Effects: []EffectView{}}
	e.cardEffects(rec, b, content, ap, &c)
	items := make([]lang.Item, len(c.Effects))
	for i, x := range c.Effects {
		items[i] = lang.Item{Type: x.Type, Connector: x.Connector, Target: x.Target}
		if c.FirstTime[x.Slot], err = e.store.FirstForTarget(ctx, a.Tenant, x.Type, x.TargetIndex, ap.RunID); err != nil {
			return Card{}, err
		}
	}
	if content {
		c.Sentence = lang.Sentence(language, items)
	}
	for _, d := range v.Drafts {
		if d.Revision == ap.Revision {
			c.Draft = d
		}
	}
	if c.Faults, err = e.faults(ctx, rec.Run); err != nil {
		return Card{}, err
	}
	for _, ch := range rec.Challenges {
		if ch.ApprovalID == ap.ID {
			c.Asked = append(c.Asked, ch)
		}
	}
	for _, d := range v.Decisions {
		if d.ApprovalID == ap.ID && d.Digest == ap.Digest {
			c.Given, c.Missing = 1, 0
			c.Standing = &d
		}
	}
	denial := holdpoint.Permit(a, holdpoint.ActionApprovalDecide, o)
	switch {
	case denial != nil:
		c.WhyNot = denial.Why
	case ap.State != holdpoint.ApprovalPending:
		c.WhyNot = "This question is settled."
	case !rec.Now.Before(ap.ApproveBy):
		c.WhyNot = "The time to decide is over."
	case !content:
		c.WhyNot = "You may not see the content that you would release."
	default:
		c.MayDecide = true
	}
	if c.Eligible, err = e.eligible(ctx, ap, o); err != nil {
		return Card{}, err
	}
	if rec.Run.Operation != nil {
		if c.Earlier, _, err = e.store.FindRuns(ctx, store.RunFilter{Tenant: a.Tenant, Record: rec.Run.Operation.Record, Limit: 6}); err != nil {
			return Card{}, err
		}
	}
	if content {
		err = e.noteReading(ctx, a, rec.Run, "approval")
	}
	return c, err
}

// faults reads from the evidence what was wrong with the outputs that did not pass.
func (e *Engine) faults(ctx context.Context, run holdpoint.Run) ([]string, error) {
	out := []string{}
	if run.Repairs == 0 {
		return out, nil
	}
	events, err := e.store.Events(ctx, run.Tenant, run.ID)
	for _, ev := range events {
		codes, _ := ev.Data["codes"].([]any)
		for _, code := range codes {
			if text, ok := code.(string); ok && ev.Type == "draft.rejected" {
				out = append(out, strings.TrimSpace(text))
			}
		}
	}
	return out, err
}

// cardEffects puts the effects of the approval's revision on the card: the planned ones until release, then the outbox rows.
func (e *Engine) cardEffects(rec store.Record, b box, content bool, ap holdpoint.Approval, c *Card) {
	o := opener{box: b, on: content}
	released := map[string]EffectView{}
	for _, x := range c.Run.Effects {
		if !x.Planned {
			released[x.ID] = x
		}
	}
	for _, x := range rec.Planned {
		if x.Revision != ap.Revision {
			continue
		}
		if r, ok := released[x.ID]; ok {
			c.Effects = append(c.Effects, r)
			continue
		}
		c.Effects = append(c.Effects, EffectView{Effect: holdpoint.Effect{EffectSpec: x.EffectSpec, Tenant: ap.Tenant}, Planned: true,
			Target: string(o.bytes("target:"+x.ID, x.Target)), Payload: o.bytes("effect:"+x.ID, x.Payload)})
	}
}

// eligible lists who may decide an approval now, by the same function that decides when they try.
func (e *Engine) eligible(ctx context.Context, ap holdpoint.Approval, o holdpoint.Object) ([]string, error) {
	people, err := e.store.ListPeople(ctx, ap.Tenant)
	if err != nil {
		return nil, err
	}
	p, err := e.policies.active(ctx, ap.Tenant)
	if err != nil {
		return nil, err
	}
	out := []string{}
	for _, x := range people {
		who := e.sessionActor(p, x)
		who.MustChangePassword = false // the log-in asks for that first, then the person may decide
		if holdpoint.Permit(who, holdpoint.ActionApprovalDecide, o) == nil {
			out = append(out, x.Email)
		}
	}
	return out, nil
}
