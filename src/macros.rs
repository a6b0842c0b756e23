/// Adds the methods `get_ref`, `get_mut` and `into_inner` to the service of a layer. They return the inner service.
macro_rules! inner_service {
    () => {
        /// Returns a reference to the inner service.
        pub fn get_ref(&self) -> &S {
            &self.inner
        }

        /// Returns a mutable reference to the inner service.
        pub fn get_mut(&mut self) -> &mut S {
            &mut self.inner
        }

        /// Returns the inner service.
        pub fn into_inner(self) -> S {
            self.inner
        }
    };
}
