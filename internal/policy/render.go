package policy

import (
	"fmt"
	"slices"
	"strconv"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/traits"
)

// Limits of what one draft may become. Fail closed: beyond them nothing is rendered.
const (
	maxItems    = 1000    // items of one for_each
	maxPayload  = 1 << 20 // bytes of one payload
	maxRendered = 8 << 20 // bytes of all payloads
	maxTarget   = 1024    // bytes of a target
	maxSlotKey  = 200     // bytes of a slot key
)

// RunInfo is what expressions may read of the run, as `run`.
type RunInfo struct {
	ID, Key, Workflow, Tenant string
}

// Input is what effects are rendered from: the claimed payload and the validated draft, both JSON.
type Input struct {
	Event, Draft []byte
	Run          RunInfo
}

// Rendered is one effect as it will be approved and sent.
type Rendered struct {
	Slot             string // the effect's name, or name[slot_key]
	Name             string
	Type             string
	Connector        string
	ConnectorVersion string
	Consequence      string
	Target           string
	Payload          []byte   // JSON
	After            []string // slots that must complete first
	Order            int      // position, from 0, in document order
	Reversible       *Reversible
}

// Render gives the effects that the draft becomes, in document order; none is a valid answer. It is a pure function of
// the policy and the input: the same input gives the same bytes. Errors have code render and name the effect, never
// content.
func (w *Workflow) Render(p *Policy, in Input) ([]Rendered, error) {
	event, err := decode(in.Event)
	if err != nil {
		return nil, err
	}
	draft, err := decode(in.Draft)
	if err != nil {
		return nil, err
	}
	exact := adapter{exact: true}
	base := map[string]any{
		"event": exact.NativeToValue(event),
		"draft": exact.NativeToValue(draft),
		"run": exact.NativeToValue(map[string]any{
			"id": in.Run.ID, "key": in.Run.Key, "workflow": in.Run.Workflow, "tenant": in.Run.Tenant,
		}),
	}
	var all []Rendered
	slots := map[string][]string{} // by effect name
	size := 0
	for _, e := range w.Effects {
		connector := p.Connectors[e.Connector]
		if connector == nil {
			return nil, e.renderError("connector", fmt.Errorf("%q is not in this policy", e.Connector))
		}
		items, err := e.items(base)
		if err != nil {
			return nil, e.renderError("for_each", err)
		}
		for _, vars := range items {
			one, ok, err := e.one(vars)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue
			}
			if slices.Contains(slots[e.Name], one.Slot) {
				return nil, e.renderError("slot_key", fmt.Errorf("two items have the same slot; choose a key that tells them apart"))
			}
			if size += len(one.Payload); size > maxRendered {
				return nil, e.renderError("payload", fmt.Errorf("all effects together are over %d bytes", maxRendered))
			}
			one.ConnectorVersion, one.Order = connector.Version, len(all)
			slots[e.Name] = append(slots[e.Name], one.Slot)
			all = append(all, one)
		}
	}
	for i := range all {
		for _, e := range w.Effects {
			if e.Name == all[i].Name {
				for _, name := range e.After {
					all[i].After = append(all[i].After, slots[name]...)
				}
			}
		}
	}
	return all, nil
}

func (e *Effect) renderError(where string, err error) error {
	return renderError("effect "+strconv.Quote(e.Name)+", "+where, err)
}

// items gives the variables of each effect that the rule makes: one without for_each.
func (e *Effect) items(base map[string]any) ([]map[string]any, error) {
	if e.forEach == nil {
		return []map[string]any{base}, nil
	}
	v, err := e.forEach.eval(base)
	if err != nil {
		return nil, err
	}
	list, ok := v.(traits.Lister)
	if !ok {
		return nil, fmt.Errorf("${%s} is not a list", e.forEach.source)
	}
	if n, ok := list.Size().(types.Int); !ok || n > maxItems {
		return nil, fmt.Errorf("${%s} has more than %d items", e.forEach.source, maxItems)
	}
	var all []map[string]any
	for it := list.Iterator(); it.HasNext() == types.True; {
		vars := map[string]any{e.as: it.Next()}
		for k, v := range base {
			vars[k] = v
		}
		all = append(all, vars)
	}
	return all, nil
}

// one renders one effect; ok is false when `when` leaves it out.
func (e *Effect) one(vars map[string]any) (r Rendered, ok bool, err error) {
	if e.when != nil {
		v, err := e.when.eval(vars)
		if err != nil {
			return r, false, e.renderError("when", err)
		}
		if v != types.True && v != types.False {
			return r, false, e.renderError("when", fmt.Errorf("${%s} gives neither true nor false", e.when.source))
		}
		if v == types.False {
			return r, false, nil
		}
	}
	r = Rendered{Slot: e.Name, Name: e.Name, Type: e.Type, Connector: e.Connector, Consequence: e.Consequence, Reversible: e.Reversible}
	if e.forEach != nil {
		key, err := e.line(e.slotKey, vars, maxSlotKey)
		if err != nil {
			return r, false, e.renderError("slot_key", err)
		}
		r.Slot = e.Name + "[" + key + "]"
	}
	if r.Target, err = e.line(e.target, vars, maxTarget); err != nil {
		return r, false, e.renderError("target", err)
	}
	if r.Payload, err = e.payload.render(nil, vars, nil); err != nil {
		return r, false, e.renderError("payload", err)
	}
	if len(r.Payload) > maxPayload {
		return r, false, e.renderError("payload", fmt.Errorf("it is over %d bytes", maxPayload))
	}
	return r, true, nil
}

// line renders a text that must be one non-empty line.
func (e *Effect) line(t text, vars map[string]any, limit int) (string, error) {
	s, err := t.render(vars, nil)
	switch {
	case err != nil:
		return "", err
	case s == "":
		return "", fmt.Errorf("it is empty")
	case len(s) > limit:
		return "", fmt.Errorf("it is over %d bytes", limit)
	case hasControl(s):
		return "", fmt.Errorf("it holds a line break or another control character")
	}
	return s, nil
}
