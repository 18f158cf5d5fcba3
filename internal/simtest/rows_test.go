package simtest

import (
	"github.com/holdpoint/holdpoint"
)

// compare holds the rows to the evidence: state and version of every run, question, effect and step are what the events
// have made of them, and there is nothing of which no event speaks.
func (s *shadow) compare() {
	w := s.w
	var version int64
	if err := w.read.QueryRow("PRAGMA data_version").Scan(&version); err != nil {
		w.broken("the store cannot be read: %v", err)
	}
	if version == w.compared {
		return
	}
	w.compared = version
	n := s.rows("SELECT id, state, version FROM runs", func(id, state string, version int64) {
		r := s.runByID[id]
		if r == nil || string(r.state) != state || r.version != version {
			w.broken("I6: run %s is %s version %d, and the evidence says %+v", w.name(id), state, version, r)
		}
	})
	if n != len(s.runs) {
		w.broken("I12: %d runs of %d are there", n, len(s.runs))
	}
	n = s.rows("SELECT id, state, version FROM effects", func(id, state string, version int64) {
		x := s.effect[id]
		if x == nil || string(x.state) != state || x.version != version && !(x.state == holdpoint.EffectUnknown && version > x.version) {
			w.broken("I6: an effect is %s version %d, and the evidence says %+v", state, version, x)
		}
	})
	for _, x := range s.effects {
		if x.accepted && x.state.Open() {
			w.broken("%s of %s was accepted, and is %s", x.slot, w.name(x.run.id), x.state)
		}
	}
	if n != len(s.effects) {
		w.broken("I12: %d effects of %d are there", n, len(s.effects))
	}
	n = s.rows("SELECT id, state, version FROM approvals", func(id, state string, version int64) {
		a := s.approval[id]
		if a == nil || string(a.state) != state || a.version != version {
			w.broken("I6: a question is %s version %d, and the evidence says %+v", state, version, a)
		}
	})
	if n != len(s.approvals) {
		w.broken("I12: %d questions of %d are there", n, len(s.approvals))
	}
	s.rows("SELECT run_id || '/' || name, state, 0 FROM steps", func(id, state string, _ int64) {
		r := s.runByID[id[:36]]
		if r == nil || r.steps[id[37:]] != holdpoint.StepState(state) {
			w.broken("I6: a step of %s is %s, and the evidence says otherwise", w.name(id[:36]), state)
		}
	})
}

// rows reads rows of an id, a state and a version, and gives their number.
func (s *shadow) rows(query string, each func(id, state string, version int64)) int {
	rows, err := s.w.read.Query(query)
	if err != nil {
		s.w.broken("the store cannot be read: %v", err)
	}
	defer rows.Close()
	n := 0
	for ; rows.Next(); n++ {
		var id, state string
		var version int64
		if err := rows.Scan(&id, &state, &version); err != nil {
			s.w.broken("a row cannot be read: %v", err)
		}
		each(id, state, version)
	}
	if err := rows.Err(); err != nil {
		s.w.broken("the store cannot be read: %v", err)
	}
	return n
}

// afterCrash holds a store that nobody has closed to I12: what had been written is there, all of it and once.
func (s *shadow) afterCrash() {
	s.follow()
	var n, last int64
	if err := s.w.read.QueryRow("SELECT COUNT(*), MAX(rowid) FROM events").Scan(&n, &last); err != nil {
		s.w.broken("the store cannot be read: %v", err)
	}
	sum := int64(0)
	for _, seq := range s.seqs {
		sum += seq
	}
	if n != sum || last != s.last {
		s.w.broken("I12: %d events of %d are there after a crash", n, sum)
	}
}
