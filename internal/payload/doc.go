// Package payload is everything Holdpoint knows about content: what a document must look like before it is believed,
// which bytes stand for it, which key names it, which contract a model's answer must meet, and how it is sealed.
//
//   - Check, Canonical, Fingerprint and RuleHash read untrusted JSON. Size and depth are bounded before anything is
//     parsed, and whatever two parsers could read in two ways is refused.
//   - Operation, CheckKey, DerivedKey and WeakLooks are about identity: which business operation is this?
//   - Contract judges a model's answer; RepairPrompt asks for a better one.
//   - Master and Key seal content, index it and mint the keys that providers see. Digest is what a decision binds to.
//
// Nothing here does I/O except reading random bytes, and no error carries content.
package payload
