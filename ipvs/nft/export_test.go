package nft

// Noticed tells whether a change that was not ours was noticed.
func (f *Filter) Noticed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notice(nil)
	spoiled := false
	for _, t := range f.tables {
		spoiled = spoiled || t.spoiled
	}
	return spoiled
}

// Lose acts as if notifications had been lost, so that the next Check lists the tables. What was noticed is forgotten.
func (f *Filter) Lose() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notice(nil)
	for _, t := range f.tables {
		t.spoiled, t.suspect = false, true
	}
}
