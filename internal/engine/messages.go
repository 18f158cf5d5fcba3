package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/auth"
	"github.com/holdpoint/holdpoint/internal/lang"
	"github.com/holdpoint/holdpoint/internal/notify"
	"github.com/holdpoint/holdpoint/internal/policy"
	"github.com/holdpoint/holdpoint/internal/store"
)

// messageData is what a message says: ids and the consequence sentence, never effect content or a decision's reason.
type messageData struct {
	Type       string     `json:"type"`
	ApprovalID string     `json:"approval_id,omitempty"`
	RunID      string     `json:"run_id,omitempty"`
	EffectID   string     `json:"effect_id,omitempty"`
	Workflow   string     `json:"workflow,omitempty"`
	Person     string     `json:"person,omitempty"`
	Sentence   string     `json:"sentence,omitempty"`
	ApproveBy  *time.Time `json:"approve_by,omitempty"`
	State      string     `json:"state,omitempty"`
	Reason     string     `json:"reason,omitempty"`
	Link       string     `json:"link,omitempty"` // set when the message leaves
}

// ask makes a challenge and a message for each eligible person on each channel of the gate. A link with a token goes only
// to a person's own address; a shared channel gets the console's address.
func (e *Engine) ask(ctx context.Context, d *store.Draft, p *loaded, w *policy.Workflow, run holdpoint.Run, rec store.Record, b box, items []lang.Item) error {
	people, err := e.store.ListPeople(ctx, run.Tenant)
	if err != nil {
		return err
	}
	initiator, err := b.open("initiator", rec.Initiator)
	if err != nil {
		return err
	}
	asked := map[string]holdpoint.Person{}
	for _, role := range w.Gate.Roles {
		for _, x := range holders(p, people, role) {
			if !strings.EqualFold(x.Email, string(initiator)) {
				asked[x.ID] = x
			}
		}
	}
	ids := make([]string, 0, len(asked))
	for id := range asked {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		x := asked[id]
		for _, name := range w.Gate.Notify {
			c := p.Channels[name]
			m := messageData{Type: "approval.requested", ApprovalID: d.Approval.ID, RunID: run.ID, Workflow: run.Workflow, Person: x.Email,
				Sentence: lang.Sentence(x.Language, items)}
			record := holdpoint.MessageRecord{Tenant: run.Tenant, RunID: run.ID, ApprovalID: d.Approval.ID, Type: m.Type, Channel: name, Email: x.Email}
			if c.Private() {
				ch := holdpoint.Challenge{ID: newID(), Tenant: run.Tenant, ApprovalID: d.Approval.ID, Email: x.Email, Channel: name}
				d.Challenges = append(d.Challenges, ch)
				record.ChallengeID = ch.ID
			}
			msg, err := e.message(ctx, record, m)
			if err != nil {
				return err
			}
			d.Messages = append(d.Messages, msg)
		}
	}
	if len(ids) == 0 {
		e.log.WarnContext(ctx, "nobody can be asked", "run", run.ID, "workflow", run.Workflow, "roles", strings.Join(w.Gate.Roles, ","))
	}
	return nil
}

// message seals one message for the lane.
func (e *Engine) message(ctx context.Context, r holdpoint.MessageRecord, m messageData) (store.Message, error) {
	r.ID = newID()
	keys, err := e.keys.of(ctx, r.Tenant)
	if err != nil {
		return store.Message{}, err
	}
	data, err := json.Marshal(m)
	if err != nil {
		return store.Message{}, err
	}
	return store.Message{MessageRecord: r, Data: keys.index.Seal("message:"+r.ID, data)}, nil
}

// alertMessages makes one message of a type for each alert channel of a workflow.
func (e *Engine) alertMessages(ctx context.Context, run holdpoint.Run, w *policy.Workflow, typ string) ([]store.Message, error) {
	return e.effectAlert(ctx, run, w, typ, "")
}

func (e *Engine) effectAlert(ctx context.Context, run holdpoint.Run, w *policy.Workflow, typ, effectID string) ([]store.Message, error) {
	var out []store.Message
	for _, name := range w.Alerts {
		m, err := e.message(ctx, holdpoint.MessageRecord{Tenant: run.Tenant, RunID: run.ID, Type: typ, Channel: name},
			messageData{Type: typ, RunID: run.ID, EffectID: effectID, Workflow: run.Workflow, State: string(run.State), Reason: string(run.Reason)})
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// How long and how often the store is asked to queue news of what has been committed already.
const (
	queueFor   = 10 * time.Second
	queueTries = 5
)

// queue adds messages that belong to no transition. What they tell has happened and is not told again, so neither the end
// of ctx nor one lost answer stops them.
func (e *Engine) queue(ctx context.Context, m []store.Message) error {
	if len(m) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), queueFor)
	defer cancel()
	for n := 1; ; n++ {
		err := e.store.AddMessages(ctx, m)
		switch {
		case n > 1 && errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeExists}):
			return nil // queued by the try whose answer was lost
		case n == queueTries, !errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeUnavailable}):
			return err
		}
		timer := time.NewTimer(time.Duration(n*n) * 20 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// alert queues alert messages that belong to no transition of the engine's; a failure is logged, since the evidence of the
// event itself stands.
func (e *Engine) alert(ctx context.Context, run holdpoint.Run, typ string) {
	p, err := e.policies.active(ctx, run.Tenant)
	if err == nil {
		var w *policy.Workflow
		if w, err = p.workflow(run.Workflow); err == nil {
			var m []store.Message
			if m, err = e.alertMessages(ctx, run, w, typ); err == nil {
				err = e.queue(ctx, m)
			}
		}
	}
	if err != nil {
		e.log.ErrorContext(ctx, "alert not queued", "run", run.ID, "type", typ, "error", err)
	}
}

// announce queues a message that concerns the whole tenant, once for each channel on which any workflow alerts.
func (e *Engine) announce(ctx context.Context, tenant, typ, state string) {
	p, err := e.activeOrNil(ctx, tenant)
	if err != nil || p == nil {
		return
	}
	channels := map[string]bool{}
	for _, w := range p.Workflows {
		for _, name := range w.Alerts {
			channels[name] = true
		}
	}
	var all []store.Message
	for _, name := range sortedKeys(channels) {
		m, err := e.message(ctx, holdpoint.MessageRecord{Tenant: tenant, Type: typ, Channel: name}, messageData{Type: typ, State: state})
		if err != nil {
			e.log.ErrorContext(ctx, "announcement not made", "type", typ, "error", err)
			return
		}
		all = append(all, m)
	}
	if err := e.queue(ctx, all); err != nil {
		e.log.ErrorContext(ctx, "announcement not queued", "type", typ, "error", err)
	}
}

// alertSteal raises the alert when a run's lease has been taken over as often as its policy says.
func (e *Engine) alertSteal(ctx context.Context, run holdpoint.Run) {
	p, err := e.policies.active(ctx, run.Tenant)
	if err != nil {
		return
	}
	if w := p.Workflows[run.Workflow]; w != nil && run.Steals == w.Lease.StealAlert {
		e.alert(ctx, run, "lease.stolen")
	}
}

// Delivery is a message ready to leave: its body is made, and its link minted, at this moment.
type Delivery struct {
	Message store.Message
	Channel *policy.Channel // nil: the channel is not in the active policy
	Notify  notify.Message
	Drop    string // why it is not to be sent; "" if it is
}

// PrepareDelivery makes a leased message's body. For a personal channel it mints a token, stores its hash and puts the
// link into the body; the token itself is kept nowhere. A request about an approval that is no longer pending is dropped.
func (e *Engine) PrepareDelivery(ctx context.Context, m store.Message) (Delivery, error) {
	d := Delivery{Message: m}
	p, err := e.policies.version(ctx, m.Tenant, m.Policy)
	if err != nil {
		return d, err
	}
	if d.Channel = p.Channels[m.Channel]; d.Channel == nil {
		d.Drop = "the active policy has no such channel"
		return d, nil
	}
	keys, err := e.keys.of(ctx, m.Tenant)
	if err != nil {
		return d, err
	}
	plain, err := keys.index.Open("message:"+m.ID, m.Data)
	if err != nil {
		return d, err
	}
	var data messageData
	if err := json.Unmarshal(plain, &data); err != nil {
		return d, fmt.Errorf("message %s: %w", m.ID, err)
	}
	data.Link = e.PublicURL("/console")
	if m.RunID != "" {
		data.Link = e.PublicURL("/console/runs/" + m.RunID)
	}
	if m.ApprovalID != "" {
		ap, err := e.store.ApprovalByID(ctx, m.Tenant, m.ApprovalID)
		if err != nil {
			return d, err
		}
		if data.Type == "approval.requested" && ap.State != holdpoint.ApprovalPending {
			d.Drop = "the approval is " + string(ap.State)
			return d, nil
		}
		data.ApproveBy = &ap.ApproveBy
		data.Link = e.PublicURL("/console/approvals/" + m.ApprovalID)
		if m.ChallengeID != "" && d.Channel.Private() {
			token := auth.Mint(auth.KindChallenge)
			if err := e.store.MintChallengeToken(ctx, m.Tenant, m.ChallengeID, token.Hash); err != nil {
				return d, err
			}
			data.Link = e.PublicURL("/approve/" + token.Token)
		}
	}
	body, err := json.Marshal(data)
	if err != nil {
		return d, err
	}
	language := ""
	if m.Email != "" {
		if x, err := e.store.PersonByEmail(ctx, m.Tenant, m.Email); err == nil {
			language = x.Language
		}
	}
	d.Notify = notify.Message{ID: m.ID, Type: data.Type, Tenant: m.Tenant, Body: body, To: m.Email, Timestamp: time.Now(),
		Subject: lang.Text(language, "mail.subject."+data.Type, data.Sentence, data.Workflow), Text: lang.Text(language, "mail.body."+data.Type, data.Sentence, data.Workflow, data.Link, when(data.ApproveBy))}
	return d, nil
}

func when(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04 UTC")
}

// sentenceItems gives what the consequence sentence is built from.
func sentenceItems(rendered []policy.Rendered) []lang.Item {
	items := make([]lang.Item, len(rendered))
	for i, x := range rendered {
		items[i] = lang.Item{Type: x.Type, Connector: x.Connector, Target: x.Target}
	}
	return items
}

// LeaseMessages leases due messages for one dispatcher.
func (e *Engine) LeaseMessages(ctx context.Context, owner string, lease time.Duration, limit int) ([]store.Message, error) {
	return e.store.LeaseMessages(ctx, owner, lease, limit)
}

// SettleMessage records what became of a leased message; state pending asks for another try after wait.
func (e *Engine) SettleMessage(ctx context.Context, owner string, m store.Message, state, detail string, wait time.Duration) error {
	return e.store.SettleMessage(ctx, owner, m.ID, m.Tenant, state, detail, wait)
}
