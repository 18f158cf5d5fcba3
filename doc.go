// Package holdpoint is the vocabulary of Holdpoint, the safety layer between AI workflows and the outside world.
//
// It holds the words (run, draft, approval, effect, attempt, outcome), the states with their transition tables as
// data, the failure classes, the permission table and the closed list of error codes. It imports the standard library
// only and does nothing by itself: every other package reads its rules from here.
package holdpoint
