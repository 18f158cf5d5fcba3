package payload

import (
	"slices"
	"strings"
)

// Identity is what names one run of a chain of replacements: its key, and the operation from which that was composed,
// if it was.
type Identity struct {
	Key       string
	Operation *Operation
}

// knownWords are what people put onto a key to get it past a duplicate check.
var knownWords = []string{
	"retry", "retried", "rerun", "redo", "repeat", "again", "try", "copy", "copy-of", "copyof", "dup", "duplicate", "fix", "fixed", "fixup",
	"correct", "corrected", "correction", "replace", "replacement", "replay", "resend", "resubmit", "new",
}

const (
	whyAdvice = " Use the id that the upstream system issued for the correction, or the same operation with its next revision."
	whySame   = "The key already names a run of this chain." + whyAdvice
	whySuffix = "The key is a key of this chain with a separator or a word such as retry, copy, again or fix added to it." + whyAdvice
	whyRecord = "The operation names a record of this chain without a revision." + whyAdvice
	whyPart   = "The operation differs from one of this chain only by something added to its parts." + whyAdvice
)

// DerivedKey says whether the identity proposed for a replacement is made from an identity of the same chain instead of
// coming from upstream, and why, in a sentence without the key.
//
//   - The same operation with a revision that the chain does not have always passes.
//   - An identity of the chain itself is derived.
//   - A key followed by a separator (any character but letters and digits) and anything is derived, and so is a key with
//     a known word (retry, copy, again, fix, …) before or after it. Letter case does not matter. order-10 is not derived
//     from order-1.
//   - Between operations the same holds for source, record and action, part by part; between a plain key and an
//     operation, for the key against the composed key and against the record.
func DerivedKey(chain []Identity, proposed Identity) (why string, derived bool) {
	proposed = composed(proposed)
	passes := false
	for _, c := range chain {
		c = composed(c)
		if c.Key == proposed.Key {
			return whySame, true
		}
		passes = passes || c.Operation != nil && proposed.Operation != nil && sameRecord(*c.Operation, *proposed.Operation)
	}
	if passes {
		return "", false
	}
	for _, c := range chain {
		if why := derivedFrom(composed(c), proposed); why != "" {
			return why, true
		}
	}
	return "", false
}

// composed fills in the key of an operation, so that only one of the two needs to be given.
func composed(i Identity) Identity {
	if i.Operation != nil {
		if key, err := i.Operation.Key(); err == nil {
			i.Key = key
		}
	}
	return i
}

// sameRecord reports whether a and b differ in their revision at most.
func sameRecord(a, b Operation) bool {
	return a.Source == b.Source && a.Record == b.Record && a.Action == b.Action
}

func derivedFrom(old, proposed Identity) (why string) {
	switch was, is := old.Operation, proposed.Operation; {
	case was != nil && is != nil:
		if sameOrAdded(was.Source, is.Source) && sameOrAdded(was.Record, is.Record) && sameOrAdded(was.Action, is.Action) {
			return whyPart
		}
	case was != nil:
		if added(old.Key, proposed.Key) || added(was.Record, proposed.Key) {
			return whySuffix
		}
	case is != nil:
		if old.Key == is.Record && is.Revision == "" {
			return whyRecord
		}
		if added(old.Key, proposed.Key) || added(old.Key, is.Record) {
			return whySuffix
		}
	case added(old.Key, proposed.Key):
		return whySuffix
	}
	return ""
}

func sameOrAdded(base, text string) bool { return base == text || added(base, text) }

// added reports whether text is base with something added to it that no upstream system would add.
func added(base, text string) bool {
	if base == "" || len(text) <= len(base) {
		return false
	}
	if after := text[len(base):]; strings.EqualFold(text[:len(base)], base) {
		word, _, _ := strings.Cut(strings.Map(toDash, after), "-")
		if isSeparator(after[0]) || isKnownWord(word) {
			return true
		}
	}
	before := text[:len(text)-len(base)]
	return strings.EqualFold(text[len(before):], base) && isKnownWord(strings.TrimRight(strings.Map(toDash, before), "-"))
}

// isKnownWord accepts a known word, alone or with a number: retry, Retry2.
func isKnownWord(text string) bool {
	return slices.Contains(knownWords, strings.ToLower(strings.TrimRight(text, "0123456789")))
}

// isSeparator accepts every ASCII character but letters and digits.
func isSeparator(c byte) bool {
	return c < 0x80 && !isDigit(c) && (c|0x20 < 'a' || c|0x20 > 'z')
}

func toDash(r rune) rune {
	if r < 0x80 && isSeparator(byte(r)) {
		return '-'
	}
	return r
}
