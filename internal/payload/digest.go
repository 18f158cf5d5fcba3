package payload

import "strconv"

// DigestInput is exactly what a decision binds to.
type DigestInput struct {
	Tenant     string         `json:"tenant"`
	RunID      string         `json:"run_id"`
	Revision   int            `json:"revision"`    // the draft's
	PolicyHash string         `json:"policy_hash"` // the policy version under which the effects were rendered
	Effects    []DigestEffect `json:"effects"`     // in order
}

// DigestEffect is what a decision binds to of one effect.
type DigestEffect struct {
	Slot             string   `json:"slot"`
	Type             string   `json:"type"`
	Connector        string   `json:"connector"`
	ConnectorVersion string   `json:"connector_version"` // the hash of its send-relevant configuration
	Target           string   `json:"target"`
	PayloadHash      string   `json:"payload_hash"` // hex SHA-256 of the exact bytes
	Order            int      `json:"order"`
	After            []string `json:"after"` // the slots it waits for; nil and empty are the same
}

// Digest is the hex SHA-256 of the canonical JSON of v. The order of the effects counts.
func Digest(v DigestInput) string {
	b := append([]byte(nil), `{"effects":[`...)
	for i, e := range v.Effects {
		if i > 0 {
			b = append(b, ',')
		}
		b = e.append(b)
	}
	b = append(b, `],"policy_hash":`...)
	b = appendText(b, []byte(v.PolicyHash), false)
	b = append(b, `,"revision":`...)
	b = strconv.AppendInt(b, int64(v.Revision), 10)
	b = append(b, `,"run_id":`...)
	b = appendText(b, []byte(v.RunID), false)
	b = append(b, `,"tenant":`...)
	b = appendText(b, []byte(v.Tenant), false)
	return Hash(append(b, '}'))
}

// append writes the effect in canonical form. It is written here and not marshalled, because encoding/json would make
// two targets with different invalid UTF-8 the same.
func (e DigestEffect) append(b []byte) []byte {
	b = append(b, `{"after":[`...)
	for i, slot := range e.After {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendText(b, []byte(slot), false)
	}
	b = append(b, `],"connector":`...)
	b = appendText(b, []byte(e.Connector), false)
	b = append(b, `,"connector_version":`...)
	b = appendText(b, []byte(e.ConnectorVersion), false)
	b = append(b, `,"order":`...)
	b = strconv.AppendInt(b, int64(e.Order), 10)
	b = append(b, `,"payload_hash":`...)
	b = appendText(b, []byte(e.PayloadHash), false)
	b = append(b, `,"slot":`...)
	b = appendText(b, []byte(e.Slot), false)
	b = append(b, `,"target":`...)
	b = appendText(b, []byte(e.Target), false)
	b = append(b, `,"type":`...)
	b = appendText(b, []byte(e.Type), false)
	return append(b, '}')
}
