package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"time"

	"github.com/holdpoint/holdpoint"
	"go.yaml.in/yaml/v3"
)

// Policy is a checked document. It never changes after Parse and is safe for concurrent use.
type Policy struct {
	Hash             string // see the function Hash
	Tenant           string
	RedeliveryWindow time.Duration // how long senders may redeliver; at least seven days
	Roles            map[string]Role
	Connectors       map[string]*Connector
	Channels         map[string]*Channel
	Workflows        map[string]*Workflow
}

// Role is a named set of people. Grants in the store add to it.
type Role struct {
	Users []string // e-mail addresses in lower case, without repetitions
}

// Workflow is everything that the document says about one workflow, with defaults filled in.
type Workflow struct {
	Name           string
	KeyScope       string // default: the name
	ContractFile   string
	ContractSchema []byte
	Repairs        int      // how often a faulty draft may be repaired; default 2
	Ignore         []string // JSON Pointers that the fingerprint leaves out
	Initiator      string   // a JSON Pointer into the event, "caller", or "" where nobody is excluded
	Lease          Lease
	Subject        string    // JSON Pointer to whose data this is, or ""
	Effects        []*Effect // in document order
	Gate           Gate
	Alerts         []string // channels
	Retry          Retry
	ExpiredKeep    time.Duration // how long what waits for re-authorisation is kept; default 7d
}

// Lease bounds how long one execution may own a run.
type Lease struct {
	Initial    time.Duration // default 5m; also what `auto` begins with until there are measurements
	Auto       bool          // size Initial from measured durations
	Cap        time.Duration // total lifetime over all renewals; default 30m
	StealAlert int           // an alert at this many steals; default 2
	StealCap   int           // the run ends at this many steals; default 5
}

// Gate is the rule that a draft must meet before its effects may be sent.
type Gate struct {
	Pattern   string   // approve_before_act
	Roles     []string // who is asked
	Assurance string   // link or login; default login
	ApproveBy time.Duration
	ExecuteBy time.Duration
	Notify    []string // channels
}

// Retry holds the policy's budgets; they cap every row of the matrix.
type Retry struct {
	RunAttempts    int           // default 3
	RunBudget      time.Duration // default 2h
	EffectAttempts int           // default 8
	EffectBudget   time.Duration // from the first attempt; default 6h
}

// The gate's words in this version.
const (
	PatternApproveBeforeAct = "approve_before_act"
	AssuranceLink           = "link"
	AssuranceLogin          = "login"
	InitiatorCaller         = "caller"
)

// Options carries what the check needs from packages that policy does not import.
type Options struct {
	// CheckContract says whether a schema file is a usable contract. nil accepts every JSON object.
	CheckContract func(name string, schema []byte) error
}

// minRedelivery is the shortest redelivery window: keys are remembered at least this long.
const minRedelivery = 7 * 24 * time.Hour

// Parse reads and checks a document together with the schema files that it names. The policy is nil exactly when a
// finding is an error; findings come in document order. Nothing is ignored: what the parser does not know is an error,
// and what a later version brings is refused by name.
func Parse(doc []byte, files map[string][]byte, o Options) (*Policy, []Finding) {
	r := &reader{}
	root := r.load(doc)
	if root == nil {
		return nil, r.sorted()
	}
	p := &Policy{Hash: Hash(doc, files)}
	top := r.object(root, "the policy")
	if n := top.need("version", "write `version: 1`"); n != nil && (n.Kind != yaml.ScalarNode || n.Value != "1") {
		r.fail(n, "invalid_value", "write `version: 1`; this program reads no other")
	}
	p.Tenant = top.string("tenant", "default")
	if n := top.has("tenant"); n != nil && p.Tenant != "" {
		r.name(n, "a tenant")
	}
	if n := top.need("redelivery_window", "say how long senders may redeliver, for example 30d"); n != nil {
		if p.RedeliveryWindow = r.duration(n, `"redelivery_window"`); p.RedeliveryWindow > 0 && p.RedeliveryWindow < minRedelivery {
			r.fail(n, "invalid_value", "remember keys for at least 7d: a sender may come back after a weekend and an outage")
		}
	}
	top.refuse("models", "call models from the workflow and submit their output as a draft")
	p.Roles = r.roles(top.has("roles"))
	p.Connectors = r.connectors(top.has("connectors"))
	p.Channels = r.channels(top.has("channels"))
	p.Workflows = r.workflows(top.has("workflows"), p, files, o)
	top.close()
	if r.failed {
		return nil, r.sorted()
	}
	return p, r.sorted()
}

// Files lists the schema files that a document names, sorted. Paths are relative and stay below the document's
// directory; any other is an error.
func Files(doc []byte) ([]string, error) {
	r := &reader{}
	root := r.load(doc)
	if root == nil {
		return nil, holdpoint.Errorf(holdpoint.CodeInvalidPolicy, "correct the policy document: %s", r.findings[0])
	}
	var names []string
	for _, w := range members(child(root, "workflows")) {
		n := child(w.value, "contract")
		if n == nil || n.Kind != yaml.ScalarNode {
			continue
		}
		if !isFilePath(n.Value) {
			return nil, holdpoint.Errorf(holdpoint.CodeInvalidPolicy, "name a contract by a path below the policy file (line %d)", n.Line)
		}
		if !slices.Contains(names, n.Value) {
			names = append(names, n.Value)
		}
	}
	slices.Sort(names)
	return names, nil
}

func child(n *yaml.Node, key string) *yaml.Node {
	for _, e := range members(n) {
		if e.key.Value == key {
			return e.value
		}
	}
	return nil
}

func members(n *yaml.Node) (list []entry) {
	if n != nil && n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			list = append(list, entry{n.Content[i], n.Content[i+1]})
		}
	}
	return list
}

// Hash identifies a policy: the hexadecimal SHA-256 over the document and the files that it names, each framed by its
// length. Files that it does not name change nothing; a document that cannot be read is hashed with all of them.
func Hash(doc []byte, files map[string][]byte) string {
	names, err := Files(doc)
	if err != nil {
		for name := range files {
			names = append(names, name)
		}
		slices.Sort(names)
	}
	h := newFrames("holdpoint policy 1")
	h.add(doc)
	for _, name := range names {
		content, ok := files[name]
		h.add([]byte(name))
		if ok {
			h.add(content)
		} else {
			h.absent()
		}
	}
	return h.hex()
}

// frames hashes a sequence of byte strings so that different sequences never hash the same bytes.
type frames struct{ buf []byte }

func newFrames(domain string) *frames {
	f := &frames{}
	f.add([]byte(domain))
	return f
}

func (f *frames) add(b []byte) {
	f.buf = binary.BigEndian.AppendUint64(append(f.buf, 1), uint64(len(b)))
	f.buf = append(f.buf, b...)
}

func (f *frames) absent() { f.buf = append(f.buf, 0) }

func (f *frames) hex() string {
	sum := sha256.Sum256(f.buf)
	return hex.EncodeToString(sum[:])
}
