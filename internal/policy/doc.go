// Package policy reads the policy document, says what is wrong with it, and makes the pure decisions that follow from
// it: which effects a draft becomes, which request an effect becomes, and what an outcome means.
//
// The package does no I/O. Nothing that an event or a draft contains is ever read as a template, an expression, a
// header or a part of an address: expressions are compiled from the document only and their results are never scanned
// again (SPEC I7, R4.1).
package policy
