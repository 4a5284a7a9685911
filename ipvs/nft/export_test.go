package nft

// Noticed tells whether a change that was not ours was noticed.
func (f *Firewall) Noticed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notice(0)
	return f.spoiled
}

// Lose acts as if notifications had been lost, so that the next Check lists the table. What was noticed is forgotten.
func (f *Firewall) Lose() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notice(0)
	f.spoiled, f.suspect = false, true
}

// TableOf is tableOf.
var TableOf = tableOf
